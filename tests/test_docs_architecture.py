"""`docs/architecture.md` says what the code is: its floors, its packages, its names, and the ways of calls.

Each check takes the text of the page and returns what is wrong with it, so that it can be shown a page with a
mistake. The walks are compared twice: the function of each stop names the next one, and a call that is made
passes every stop.
"""

from __future__ import annotations

import ast
import re
import runpy
import sys
import threading
import tomllib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any

import httpx
import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, empty_checkpoint
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.pregel import Pregel
from langgraph.types import interrupt

import perdure
from perdure.langgraph.saver import PerdureSaver
from perdure.model.runs.messages import Reply
from perdure.model.values.packs import BLOCK
from perdure.runtime import Channel, Runtime
from perdure.server.app import create_app
from perdure.server.auth.identity import OpenGate
from perdure.server.resources import ServerState
from perdure.testing.faults import faulty
from tests.architecture_page import (
    BESIDE,
    DRIVER,
    FILE,
    LOAD,
    MESSAGE,
    PAGE,
    PUT,
    QUESTION,
    ROOT,
    SOURCE,
    WALKS,
    Place,
    Stop,
    defined_at,
    everywhere,
    imported,
    located,
    packages,
    rooms,
    routes,
    rows,
    section,
    stops,
    tokens,
    without_parameters,
)
from tests.backends import EMPTY
from tests.docs_pages import blocks_of, pages
from tests.runtime.graphs import eventually, go

ELSEWHERE = {"await saver.aput(…)", "interrupt()", "lint-imports", "make demo", "perdure"}
"""Code on the page that is not a name of this package."""

Check = Callable[[str], list[str]]
# Checks: each returns what is wrong


def check_packages(page: str) -> list[str]:
    listed = [cells[0].strip("`") for cells in rows(section(page, "What each package decides"))[1:]]
    wrong = [f"{name} is not a package" for name in listed if name not in packages()]
    wrong += [f"{name} is missing" for name in packages() if name not in listed]
    return wrong + [f"{name} is there twice" for name in set(listed) if listed.count(name) > 1]


def check_rooms(page: str) -> list[str]:
    """Each room is in the table once, with the sentence of its ``__init__.py``."""
    listed = [(cells[0].strip("`"), cells[1]) for cells in rows(section(page, "What each room decides"))[1:]]
    wrong = [f"{name} is not a room" for name, _ in listed if name not in rooms()]
    wrong += [f"{name} says: {rooms()[name]}" for name, said in listed if said != rooms().get(name, said)]
    counts = Counter(name for name, _ in listed)
    return wrong + [f"{name} is there {counts[name]} times" for name in rooms() if counts[name] != 1]


def check_refusals(page: str) -> list[str]:
    """A package or room imports none of those that it refuses to know, and names one at least."""
    wrong = []
    tables = [rows(section(page, f"What each {one} decides"))[1:] for one in ("package", "room")]
    for package, _, refused in [*tables[0], *tables[1]]:
        name = package.strip("`")
        known = packages() | rooms().keys()
        unknown = [each for each in re.findall(r"no `([\w/]+)`", refused) if each in known]
        wrong += [f"{name} imports {each}" for each in unknown if each in imported(name)]
        wrong += [] if unknown else [f"{name} refuses to know no package"]
    return wrong


def check_floors(page: str) -> list[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = project["tool"]["importlinter"]["contracts"]
    layers = next(each["layers"] for each in contracts if each.get("containers") == ["perdure"])
    block = re.search(r"^```text\n(.*?)^```", section(page, "Floors"), re.MULTILINE | re.DOTALL)
    shown = [re.split(r"\s{2,}", line)[0] for line in block[1].splitlines()] if block else []
    return [] if shown == [re.sub(r"[()]", "", layer) for layer in layers] else [f"the floors are {layers}"]


def check_names(page: str) -> list[str]:
    """All code on the page is a path, a route, or a name that there is."""
    return [f"{token} is nowhere" for token in tokens(page) if not is_known(token)]


def is_known(token: str) -> bool:
    if token in ELSEWHERE:
        return True
    if re.fullmatch(r"[A-Z]+ /\S+", token):
        return without_parameters(token) in routes()
    if "/" in token or re.search(r"\.(py|md|toml|yml)$", token):
        return located(token) is not None
    return token in everywhere() or token in packages()


def check_places(page: str) -> list[str]:
    """A name beside the path of a module is one that the module defines."""
    named = BESIDE.findall(page)
    return [f"{file} does not define {name}" for file, name in named if not defined_at(file, name)]


def check_references(page: str) -> list[str]:
    """The function from which a stop is reached names it."""
    return [problem for title in WALKS for problem in unreferenced(title, stops(page, title))]


def unreferenced(title: str, walk: list[Stop]) -> Iterator[str]:
    if [stop.number for stop in walk] != list(range(1, len(walk) + 1)) or len(walk) < 10:
        yield f"{title}: the numbers of its stops are {[stop.number for stop in walk]}"
        return
    for stop in walk:
        if not any(names(node, stop.last_name) for node in callers(stop, walk)):
            yield f"{title}: stop {stop.number}, {stop.name}, is not named by {stop.by or stop.origin}"


def callers(stop: Stop, walk: list[Stop]) -> list[ast.stmt]:
    """Return the function that has to name a stop, or nothing if there is none or it is not clear which."""
    is_earlier = stop.origin.isdigit() and 0 < int(stop.origin) < stop.number
    before = walk[int(stop.origin) - 1] if is_earlier else None
    if stop.by is None:
        if before is not None:
            return defined_at(before.file, before.name)
        is_called = stop.origin in FROM_OUTSIDE and FROM_OUTSIDE[stop.origin](stop)
        return [ast.Expr(ast.Name(stop.last_name))] if is_called else []
    if stop.origin.isdigit() and before is None:
        return []
    file, name = stop.by
    # Beside the stop, or beside the one before it, or else the only one of this name.
    files = [file] if file else [stop.file, *([] if before is None else [before.file])]
    found = [node for each in files for node in defined_at(each, name)]
    others = everywhere().get(name, [])
    return found[:1] or (others if len(others) == 1 and not file else [])


def is_of_a_saver(stop: Stop) -> bool:
    """Return True for a method of LangGraph's interface, which LangGraph calls."""
    return stop.name.startswith("PerdureSaver.") and hasattr(BaseCheckpointSaver, stop.last_name)


def is_route(stop: Stop) -> bool:
    decorators = [each for node in defined_at(stop.file, stop.name) for each in node.decorator_list]  # type: ignore[attr-defined]
    return any(ast.unparse(each).startswith("router.") for each in decorators)


FROM_OUTSIDE: Mapping[str, Callable[[Stop], bool]] = {"LangGraph": is_of_a_saver, "FastAPI": is_route}
"""What calls a stop without naming it, with the test of whether it does."""


def names(node: ast.AST, name: str) -> bool:
    inner = list(ast.walk(node))
    is_named = any(isinstance(each, ast.Name) and each.id == name for each in inner)
    return is_named or any(isinstance(each, ast.Attribute) and each.attr == name for each in inner)


def check_code(page: str) -> list[str]:
    blocks = re.findall(r"^```python", page, re.MULTILINE)
    marked = [block for block in blocks_of(page) if block.is_marked]
    wrong = [] if blocks and len(blocks) == len(marked) else [f"{len(marked)} of {len(blocks)} blocks run"]
    with TemporaryDirectory() as folder:
        for block in marked:
            program = Path(folder, "block.py")
            program.write_text(block.code, encoding="utf-8")
            try:
                runpy.run_path(str(program))
            except Exception as error:
                wrong.append(f"the block at line {block.line} raises {error!r}")
    return wrong


CHECKS: tuple[Check, ...] = (
    check_packages,
    check_rooms,
    check_refusals,
    check_floors,
    check_names,
    check_places,
    check_references,
    check_code,
)


@pytest.mark.parametrize("check", CHECKS)
def test_the_page_is_right(check: Check) -> None:
    assert check(PAGE) == []


MISTAKES: tuple[tuple[Check, str, str], ...] = (
    (check_packages, "| `schema` |", "| `scheme` |"),
    (check_packages, "| `schema` |", "| `engine` |"),
    (check_rooms, "| `engine/queue` |", "| `engine/queues` |"),
    (check_rooms, "| Decide what a thread holds:", "| Decide what it holds:"),
    (check_refusals, "no `engine/queue`, no `engine/retention`. |", "no `model`. |"),
    (check_refusals, "no `runtime`, no `database`. |", "no `runtime`, no `engine`. |"),
    (check_refusals, "no `cli`, no `server`. |", "nothing. |"),
    (check_floors, "\nadmin  ", "\nadmins  "),
    (check_floors, "\nmodel  ", "\nmodel | errors  "),
    (check_floors, "engine | storage  ", "engine  "),
    (check_names, "`testing/faults.py`", "`testing/fault.py`"),
    (check_names, "`Dispatch.run`", "`Dispatch.walk`"),
    (check_names, "`due_at`", "`due_on`"),
    (check_names, "POST /threads/{id}/runs/stream", "POST /threads/{id}/run/stream"),
    (check_names, "`storage/<backend>/driver.py`", "`storage/<backend>/drivers.py`"),
    (check_places, "`storage/url.py` `_BACKENDS`", "`storage/port.py` `_BACKENDS`"),
    (check_places, "`model/runs/queue.py` `Lane`", "`model/queues.py` `Lane`"),
    (check_references, "| 11 | 9 | `model/heads.py` `judge`", "| 11 | 6 | `model/heads.py` `judge`"),
    (check_references, "| 9 | 8, by `StepPut._try_decide` |", "| 9 | 8, by `StepPut._plan_guards` |"),
    (
        check_references,
        "| 13 | 12, by `Acceptance._begin_at_once` |",
        "| 13 | 99, by `Acceptance._begin_at_once` |",
    ),
    (
        check_references,
        "FastAPI | `server/routes/runs.py` `stream`",
        "FastAPI | `server/streaming/streams.py` `stream`",
    ),
    (check_references, "saver.py` `PerdureSaver.aget_tuple`", "saver.py` `PerdureSaver._aput`"),
    (check_references, "| 17 | 8 |", "| 18 | 8 |"),
    (check_code, "```python {.run}", "```python"),
    (check_code, '"third"), Rival(database)) == 4', '"third"), Rival(database)) == 3'),
)


@pytest.mark.parametrize(("check", "right", "wrong"), MISTAKES)
def test_a_mistake_on_the_page_is_found(check: Check, right: str, wrong: str) -> None:
    assert right in PAGE
    assert check(PAGE.replace(right, wrong, 1))


def test_each_check_has_a_mistake_that_it_finds() -> None:
    assert {check for check, _, _ in MISTAKES} == set(CHECKS)


# Calls pass every stop


class Passed:
    """The stops that a block passes: for each the numbers of its first and last call, and the functions in
    which it was called."""

    def __init__(self, walk: list[Stop]) -> None:
        self._wanted = {stop.place for stop in walk}
        self._count = 0
        self.first: dict[Place, int] = {}
        self.last: dict[Place, int] = {}
        self.within: dict[Place, set[Place]] = {}

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Take note of the calls in this thread, and in those that are started meanwhile."""
        before = sys.getprofile()
        threading.setprofile(self._note)
        sys.setprofile(self._note)
        try:
            yield
        finally:
            sys.setprofile(before)
            threading.setprofile(None)

    def _note(self, frame: FrameType, event: str, _: object) -> None:
        if event != "call" or (place := place_of(frame)) not in self._wanted:
            return
        self._count += 1
        self.first.setdefault(place, self._count)
        self.last[place] = self._count
        around, outer = self.within.setdefault(place, set()), frame.f_back
        while outer is not None:
            around.add(place_of(outer))
            outer = outer.f_back


def place_of(frame: FrameType) -> Place:
    code = frame.f_code
    return code.co_filename.removeprefix(f"{SOURCE}/"), code.co_qualname


def unpassed(walk: list[Stop], passed: Passed, *, is_nested: bool) -> list[str]:
    """Return the stops that were not called after those from which they are reached. With ``is_nested`` they
    have to be called within these: no other task takes over."""
    wrong = []
    for stop in walk:
        place = stop.place
        if stop.origin == "uvicorn" and stop.file.startswith("web/"):
            # The requests of these tests come over no socket.
            continue
        if place not in passed.last:
            wrong.append(f"stop {stop.number}, {stop.name}, is not called")
        elif stop.origin.isdigit():
            before = walk[int(stop.origin) - 1].place
            is_after = passed.first.get(before, sys.maxsize) < passed.last[place]
            if not (before in passed.within[place] if is_nested else is_after):
                wrong.append(f"stop {stop.number}, {stop.name}, is not reached from stop {stop.origin}")
    return wrong


def config(thread_id: str) -> RunnableConfig:
    return {"configurable": {"thread_id": thread_id, "checkpoint_ns": ""}}


async def put(saver: PerdureSaver, at: RunnableConfig, step: int) -> RunnableConfig:
    checkpoint = empty_checkpoint()
    checkpoint["channel_values"] = {"messages": [f"{n} " * 200 for n in range(step + 1)]}
    checkpoint["channel_versions"] = {"messages": step + 1}
    return await saver.aput(at, checkpoint, {"source": "loop", "step": step}, {"messages": step + 1})


def test_a_put_passes_every_stop() -> None:
    walk = stops(PAGE, PUT)
    passed = Passed(walk)

    async def main() -> None:
        async with perdure.connect("memory://") as db:
            saver, at = db.checkpointer(), config("thread")
            with passed.noted():
                for step in range(BLOCK):
                    at = await put(saver, at, step)

    go(main())
    assert unpassed(walk, passed, is_nested=True) == []
    moved = [stop._replace(origin="16") if stop.number == 17 else stop for stop in walk]
    assert len(unpassed(moved, passed, is_nested=True)) == 1, "a stop at another place is found"
    assert len(unpassed(walk, Passed(walk), is_nested=True)) == len(walk), "stops that are left out are found"


def test_a_cold_load_passes_every_stop_with_one_request() -> None:
    walk = stops(PAGE, LOAD)
    passed = Passed(walk)
    with faulty("memory://") as (db, driver):
        go(put(db.checkpointer(), config("thread"), 9))
        before = driver.count
        with passed.noted():
            found = go(db.checkpointer().aget_tuple(config("thread")))
        assert found is not None
        assert driver.count - before == 1
    assert unpassed(walk, passed, is_nested=True) == []


def test_requests_pass_every_stop_of_a_driver(tmp_path: Path) -> None:
    walk = stops(PAGE, DRIVER)
    passed = Passed(walk)

    async def main(url: str) -> None:
        with passed.noted():
            async with perdure.connect(url, migrate=True) as db:
                saver = db.checkpointer()
                # The second put finds the thread's records, which are read before they are overwritten.
                await put(saver, await put(saver, config("thread"), 0), 1)
                assert await db.checkpointer().aget_tuple(config("thread")) is not None

    go(main(f"sqlite:///{tmp_path / 'threads.db'}"))
    with EMPTY["postgresql"]() as url:
        go(main(url))
    assert unpassed(walk, passed, is_nested=False) == []


def asking() -> Pregel[Any, Any, Any, Any]:
    """Return a graph that says something, and then asks something."""

    def say(state: MessagesState) -> dict[str, Any]:
        return {"messages": [("ai", "hello")]}

    def ask(state: MessagesState) -> dict[str, Any]:
        return {"messages": [("ai", interrupt("sure?"))]}

    builder = StateGraph(MessagesState)
    builder.add_node("say", say)
    builder.add_node("ask", ask)
    builder.add_edge(START, "say")
    builder.add_edge("say", "ask")
    return builder.compile()


@asynccontextmanager
async def served(sent: list[str]) -> AsyncIterator[tuple[Runtime, httpx.AsyncClient]]:
    """Yield a runtime, and a client of the API over it. The channel ``"out"`` adds the thread of each reply
    to ``sent``."""

    async def send(thread_id: str, reply: Reply) -> None:
        sent.append(thread_id)

    channels = {"out": Channel(send, ask=lambda _, value: value)}
    async with (
        perdure.connect("memory://") as db,
        Runtime(db, {"asking": asking()}, channels=channels) as runtime,
    ):
        app = create_app()
        app.state.perdure = ServerState.over(runtime, OpenGate())
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
            yield runtime, client


INPUT = {"assistant_id": "asking", "if_not_exists": "create", "input": {"messages": [["user", "hi"]]}}
ANSWER = {"assistant_id": "asking", "command": {"resume": "yes"}}
THREAD = "/threads/0f0f0f0f-0000-4000-8000-000000000000"


def test_a_message_passes_every_stop() -> None:
    walk = stops(PAGE, MESSAGE)
    passed = Passed(walk)
    sent: list[str] = []

    async def main() -> None:
        # What was sent is settled before the runtime is closed.
        with passed.noted():
            async with served(sent) as (runtime, client):
                answer = await client.post(f"{THREAD}/runs/stream", json=INPUT)
                await runtime.accept("chat", "hi", channel="out")
                await eventually(lambda: sent)
        assert "sure?" in answer.text

    go(main())
    assert unpassed(walk, passed, is_nested=False) == []
    moved = [stop._replace(origin="35") if stop.number == 7 else stop for stop in walk]
    assert unpassed(moved, passed, is_nested=False), "a stop that comes too early is found"


def test_a_question_passes_every_stop() -> None:
    walk = stops(PAGE, QUESTION)
    passed = Passed(walk)

    async def main() -> None:
        with passed.noted():
            async with served([]) as (_, client):
                await client.post(f"{THREAD}/runs/wait", json=INPUT)
                shown = (await client.get(f"{THREAD}/state")).json()
                ended = (await client.post(f"{THREAD}/runs/wait", json=ANSWER)).json()
        assert [each["value"] for each in shown["interrupts"]] == ["sure?"]
        assert ended["messages"][-1]["content"] == "yes"

    go(main())
    assert unpassed(walk, passed, is_nested=False) == []


# Beside the page


def test_contributing_leads_to_the_tables_of_packages_and_rooms() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    for title in ("What each package decides", "What each room decides"):
        assert section(PAGE, title)
        assert f"(docs/architecture.md#{title.lower().replace(' ', '-')})" in text
    listed = re.findall(r"^\| `([\w/]+)/` \|", text, re.MULTILINE)
    assert len(listed) > 3
    assert [folder for folder in listed if not (ROOT / folder).is_dir()] == []


def test_the_navigation_has_the_page_and_the_index_of_decisions() -> None:
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    listed = set(re.findall(r"([\w-]+/index\.md|[\w-]+\.md)$", text, re.MULTILINE))
    assert {FILE.name, "decisions/index.md"} <= listed


def test_the_index_has_each_decision() -> None:
    folder = ROOT / "docs" / "decisions"
    index = (folder / "index.md").read_text(encoding="utf-8")
    assert [path.name for path in sorted(folder.glob("0*.md")) if f"]({path.name})" not in index] == []


def test_the_page_is_among_those_whose_code_runs() -> None:
    assert FILE in pages()
