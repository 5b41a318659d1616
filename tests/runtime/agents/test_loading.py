"""Graphs named by file: what the file's module is called, what it can import, and what is refused."""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from langgraph.checkpoint.memory import InMemorySaver

from perdure.errors import GraphLoadError
from perdure.runtime.agents import loading
from perdure.runtime.agents.graph_factories import Factory
from perdure.runtime.agents.module_files import names_file

GRAPH = """
from __future__ import annotations
from dataclasses import dataclass
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import MessagesState, StateGraph


@dataclass
class Note:
    text: Kind


class Kind(str): ...


builder = StateGraph(MessagesState).add_node("n", lambda state: None).set_entry_point("n")
graph = builder.compile()
saving = builder.compile(checkpointer=InMemorySaver())
shared = builder.compile(checkpointer=True)
unsaved = builder.compile(checkpointer=False)
"""

Write = Callable[[str, str], Path]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Write a file of a project, which is the current folder; its modules are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    before = set(sys.modules)

    def write(name: str, text: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    yield write
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", None) or tmp_path).startswith(str(tmp_path)):
            del sys.modules[name]


def agent(place: str) -> Any:
    return asyncio.run(loading.load_agent(loading.find(place)))


def found(place: str, root: Path | None = None) -> Any:
    return loading.find(place, root=root).found


@pytest.mark.parametrize("place", ["./pi_agent.py:graph", "pi_agent.py:graph", "pi_agent:graph"])
def test_a_graph_is_found_by_file_as_by_module(write: Write, place: str) -> None:
    write("pi_agent.py", GRAPH)
    assert agent(place).graph is sys.modules["pi_agent"].graph


def test_a_place_in_a_folder_is_loaded_under_its_name_from_the_project(write: Write) -> None:
    write("flows/chat.py", GRAPH)
    write("flows/search.py", GRAPH)
    write("more/chat.py", GRAPH)
    loaded = [
        found(f"./{place}.py:graph").nodes and found(f"{place}.py:Note").__module__
        for place in ("flows/chat", "more/chat", "flows/search")
    ]
    assert loaded == ["flows.chat", "more.chat", "flows.search"]


def test_the_name_of_a_module_does_not_depend_on_where_the_project_lies(write: Write, tmp_path: Path) -> None:
    write("here/flows/chat.py", GRAPH)
    write("there/flows/chat.py", GRAPH)
    assert found("./flows/chat.py:Note", tmp_path / "here").__module__ == "flows.chat"
    del sys.modules["flows.chat"]
    assert found("./flows/chat.py:Note", tmp_path / "there").__module__ == "flows.chat"


def test_its_types_can_be_pickled_and_their_hints_read(write: Write) -> None:
    write("flows/chat.py", GRAPH)
    note = found("./flows/chat.py:Note")
    assert pickle.loads(pickle.dumps(note("x"))) == note("x")  # noqa: S301 - our own bytes
    assert get_type_hints(note)["text"] is found("./flows/chat.py:Kind")


def test_a_file_is_loaded_once_however_it_is_named(write: Write, tmp_path: Path) -> None:
    path = write(
        "flows/once.py",
        "from pathlib import Path\nwith open('count', 'a') as f: f.write('x')\na = b = object()\n",
    )
    (tmp_path / "link").symlink_to("flows")
    places = ["./flows/once.py:a", f"{path}:b", "flows/../flows/once.py:a", "link/once.py:a", "flows.once:a"]
    assert len({id(found(place)) for place in places}) == 1
    assert (tmp_path / "count").read_text() == "x"


def test_a_module_that_was_imported_before_is_not_loaded_again(write: Write) -> None:
    write("pi_agent.py", "a = object()\n")
    assert found("pi_agent:a") is found("./pi_agent.py:a")


def test_its_own_folder_and_the_project_can_be_imported(write: Write) -> None:
    write("flows/pi_side.py", "SIDE = 'side'\n")
    write("pi_root.py", "ROOT = 'root'\n")
    write("flows/chat.py", "from pi_side import SIDE\nfrom pi_root import ROOT\nboth = SIDE + ROOT\n")
    assert found("./flows/chat.py:both") == "sideroot"


def test_the_project_is_the_root_and_not_the_current_folder(write: Write, tmp_path: Path) -> None:
    write("project/pi_root.py", "ROOT = 'root'\n")
    write("project/flows/chat.py", "from pi_root import ROOT\n")
    assert found("./flows/chat.py:ROOT", tmp_path / "project") == "root"
    assert found("pi_root:ROOT", tmp_path / "project") == "root"
    assert str(tmp_path) not in sys.path


def test_a_file_in_a_package_is_the_package_s_module(write: Write) -> None:
    write("src/pi_pack/__init__.py", "class P: ...\n")
    write("src/pi_pack/inner/__init__.py", "")
    write("src/pi_pack/words.py", "WORD = 'word'\n")
    write(
        "src/pi_pack/inner/chat.py",
        "from ..words import WORD\nfrom pi_pack.words import WORD as SAME\nclass C: ...\n",
    )
    assert found("./src/pi_pack/__init__.py:P").__module__ == "pi_pack"
    place = "./src/pi_pack/inner/chat.py"
    assert found(f"{place}:WORD") is found(f"{place}:SAME")
    assert found(f"{place}:C").__module__ == "pi_pack.inner.chat"
    assert found("./src/pi_pack/__init__.py:words.WORD") == "word"


def test_a_package_of_that_name_from_elsewhere_is_no_substitute(write: Write) -> None:
    write("one/pi_pack/__init__.py", "")
    write("one/pi_pack/chat.py", "a = 1\n")
    write("two/pi_pack/__init__.py", "")
    write("two/pi_pack/chat.py", "a = 2\n")
    assert found("./one/pi_pack/chat.py:a") == 1
    with pytest.raises(GraphLoadError, match=r"pi_pack is imported from .*one.*; rename the package pi_pack"):
        found("./two/pi_pack/chat.py:a")


def test_a_package_that_is_found_earlier_is_no_substitute(write: Write, tmp_path: Path) -> None:
    for folder in ("one", "two"):
        write(f"{folder}/pi_pack/__init__.py", "")
        write(f"{folder}/pi_pack/chat.py", "a = 1\n")
        sys.path.insert(0, str(tmp_path / folder))
    with pytest.raises(
        GraphLoadError, match=r"pi_pack\.chat is imported from .*two.*; rename the package pi_pack"
    ):
        found("./one/pi_pack/chat.py:a")


def test_a_file_hides_no_module_that_is_there(write: Write) -> None:
    write("email.py", "a = 1\n")
    write("langgraph.py", "a = 1\n")
    write("turtledemo.py", "a = 1\n")
    assert "turtledemo" not in sys.modules
    for place in ("./email.py:a", "./langgraph.py:a", "./turtledemo.py:a"):
        with pytest.raises(GraphLoadError, match="there is another of this name; rename the file"):
            found(place)
    import email

    assert not hasattr(email, "a")


def test_a_file_that_fails_leaves_no_half_of_a_module(write: Write) -> None:
    path = write("pi_agent.py", "a = 1\nraise LookupError('not now')\n")
    with pytest.raises(GraphLoadError, match=r"pi_agent\.py, line 2: LookupError: not now"):
        found("./pi_agent.py:a")
    path.write_text("a = 2\n")
    os.utime(path, (0, 0))
    assert found("./pi_agent.py:a") == 2


@pytest.mark.parametrize(
    ("place", "mend"),
    [
        ("./none.py:graph", r"there is no file .*none\.py; check the path, which starts at "),
        ("./folder:graph", r"is not a Python file; name one that ends in \.py"),
        ("./agent.ts:graph", r"is not a Python file; name one that ends in \.py"),
        ("./folder.py:graph", r"there is no file .*folder\.py; check the path"),
        ("./pi_agnet.py:graph", r"there is no file .*pi_agnet\.py; did you mean pi_agent\.py\?"),
        ("pi_agnet:graph", r"there is no module 'pi_agnet', .*; did you mean pi_agent\.py\?"),
        ("./pi_agent.py", r"'./pi_agent\.py' is not a place to look; write .* e\.g\. \./app\.py:graph"),
        ("./pi_agent.py:none", r"module 'pi_agent' has no 'none'; it has builder, graph"),
        ("./garbled.py:graph", r"SyntaxError: .*\(garbled\.py, line 1\)"),
        ("./needy.py:graph", r"needy\.py, line 1: ModuleNotFoundError: No module named 'no_such_library'"),
        ("./leaving.py:graph", r"leaving\.py, line 1: SystemExit: 3"),
        ("./packed/needy.py:graph", r"needy\.py, line 1: ModuleNotFoundError: No module named 'no_such_li"),
    ],
)
def test_a_file_that_cannot_be_used_is_told_with_the_mend(write: Write, place: str, mend: str) -> None:
    write("pi_agent.py", GRAPH)
    write("agent.ts", "")
    write("folder.py/x", "")
    write("folder/x", "")
    write("garbled.py", "def\n")
    write("needy.py", "import no_such_library\n")
    write("packed/__init__.py", "")
    write("packed/needy.py", "import no_such_library\n")
    write("leaving.py", "raise SystemExit(3)\n")
    with pytest.raises(GraphLoadError, match=mend):
        found(place)


@pytest.mark.parametrize(
    ("place", "is_file"),
    [
        *((place, True) for place in ("./a.py:g", "d/a.py:g", "a.py:g", "C:\\d\\a.py:g", "./a.py")),
        *((place, False) for place in ("a:g", "a.b:g", "a")),
    ],
)
def test_a_file_is_told_from_a_module(place: str, is_file: bool) -> None:
    assert names_file(place) is is_file


def test_a_graph_that_forbids_saving_is_refused(write: Write) -> None:
    write("pi_agent.py", GRAPH)
    with pytest.raises(
        GraphLoadError, match=r"compiled with checkpointer=False, .* compile it without that arg"
    ):
        agent("./pi_agent.py:unsaved")


def test_a_graph_s_own_saver_is_replaced_and_that_is_told(
    write: Write, caplog: pytest.LogCaptureFixture
) -> None:
    write("pi_agent.py", GRAPH)
    with caplog.at_level(logging.WARNING, "perdure.runtime"):
        for name in ("graph", "shared", "builder"):
            agent(f"./pi_agent.py:{name}")
        assert not caplog.records
        agent("./pi_agent.py:saving")
    (told,) = caplog.messages
    assert told.startswith(
        f"./pi_agent.py:saving is compiled with a {InMemorySaver.__name__}, which is not used"
    )


FACTORIES = (
    GRAPH
    + """
from contextlib import asynccontextmanager


def of_config(config):
    return graph


async def of_default(config=None):
    return graph


def of_nothing(name="x"):
    return graph


def of_much(config, tenant):
    return graph


@asynccontextmanager
async def context():
    yield graph
"""
)


def test_a_factory_of_a_config_is_called_for_each_use_and_one_of_nothing_once(write: Write) -> None:
    write("pi_agent.py", FACTORIES)
    for name in ("of_default", "of_config", "context"):
        assert isinstance(agent(f"./pi_agent.py:{name}").graph, Factory), name
    assert agent("./pi_agent.py:of_nothing").graph is found("./pi_agent.py:graph")
    with pytest.raises(
        GraphLoadError, match="requires arguments other than a run's config and a ServerRuntime"
    ):
        agent("./pi_agent.py:of_much")
