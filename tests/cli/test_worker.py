"""Worker processes as an operator runs them: real ones, told to stop in the middle of things, on SQLite.

Covers perdure.cli.logs, perdure.cli.stop_signals, perdure.cli.worker_process.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import pytest

from perdure.cli.worker import worker
from perdure.model.runs.messages import DONE, OPEN
from perdure.runtime import Settings
from tests.cli.processes import LEASE, WITHIN, Workers

Run_ = Callable[..., tuple[int, str, str]]


def test_a_worker_answers_what_another_process_accepted(workers: Workers) -> None:
    before = [(f"before-{n}", f"word-{n}") for n in range(5)]
    tickets = workers.accept(*before, channel="pigeon")
    words = ("app:graph", "--channels", "app:channels", "--log-level", "debug")
    process = workers.start(*words, is_forked=False)
    after = [(f"after-{n}", f"word-{n}") for n in range(5)]
    tickets += workers.accept(*after, channel="pigeon")
    assert [(run.state, run.note.get("error")) for run in workers.wait(tickets)] == [(DONE, None)] * 10
    workers.until(lambda: sum(line.startswith("sent ") for line in workers.notes()) == 10)
    for thread, word in before + after:
        assert workers.said(thread) == [word, f"echo {word}"]
    process.send_signal(signal.SIGTERM)
    assert workers.ended(process) == 0
    log = workers.log(process)
    assert "runs agent on sqlite:///" in log
    assert "has stopped: runs: 10 done" in log
    assert "word-" not in log, "what people write is in no log"
    assert "Traceback" not in log


def test_several_graphs_are_told_apart_by_name_and_may_be_made_by_a_function(workers: Workers) -> None:
    process = workers.start("app:make", "desk=app:uncompiled", "inner=app:Folder.inner", "own=app:agent")
    tickets = {name: workers.accept((name, name), graph=name) for name in ("agent", "desk", "inner", "own")}
    for name, mine in tickets.items():
        assert workers.wait(mine, name)[0].graph == name
        assert workers.said(name) == [name, f"echo {name}"]
    process.send_signal(signal.SIGINT)
    assert workers.ended(process) == 0


@pytest.mark.slow
def test_told_to_stop_it_ends_its_run_and_claims_no_other(workers: Workers) -> None:
    process = workers.start("app:graph", "--drain", str(WITHIN))
    slow = workers.accept(("a", "slow"))
    workers.until(lambda: "answer slow" in workers.notes())
    workers.ask_to_stop(process)
    late = workers.accept(("b", "late"))
    workers.free()
    assert workers.ended(process) == 0
    (run,) = workers.wait(slow)
    assert (run.state, run.attempts) == (DONE, 1)
    assert workers.said("a") == ["slow", "echo slow"]
    assert workers.runs("b") == []
    workers.start("app:graph")
    assert workers.wait(late)[0].state == DONE
    assert workers.notes() == ["first slow", "answer slow", "first late", "answer late"]


@pytest.mark.slow
@pytest.mark.parametrize("graph", ["graph", "stubborn", "stuck"])
def test_a_run_longer_than_the_drain_is_handed_over_and_ended_once(workers: Workers, graph: str) -> None:
    """``stubborn`` sits in a thread, where nothing can interrupt it; ``stuck`` ignores its cancellation."""
    process = workers.start(f"app:{graph}", "--drain", "0.2", "--attempts", "1")
    slow = workers.accept(("a", "slow"))
    kind = "answer" if graph == "graph" else graph
    workers.until(lambda: f"{kind} slow" in workers.notes())
    process.send_signal(signal.SIGTERM)
    assert workers.ended(process) == 0
    assert "1 handed over" in workers.log(process)
    assert [run.state for run in workers.runs("a")] == [OPEN]
    assert workers.holder("a") is None
    workers.free()
    workers.start("app:graph", "--attempts", "1")
    (run,) = workers.wait(slow)
    assert (run.state, run.attempts) == (DONE, 1)
    assert workers.said("a") == ["slow", "echo slow"]
    assert workers.notes() == ["first slow", f"{kind} slow", "answer slow"], "a committed step runs once"


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_second_signal_ends_it_at_once_and_nothing_is_lost(
    workers: Workers, number: int, code: int
) -> None:
    process = workers.start("app:graph", "--drain", str(LEASE), lease=2.0)
    slow = workers.accept(("a", "slow"))
    workers.until(lambda: "answer slow" in workers.notes())
    workers.ask_to_stop(process, number)

    def has_ended() -> bool:
        process.send_signal(number)
        return process.poll() is not None

    workers.until(has_ended)
    assert workers.ended(process) == code
    assert workers.holder("a") is not None
    workers.free()
    workers.start("app:graph")
    (run,) = workers.wait(slow)
    assert (run.state, run.attempts) == (DONE, 2)
    assert workers.said("a") == ["slow", "echo slow"]


@pytest.mark.slow
def test_a_signal_that_comes_twice_at_once_is_one_request(workers: Workers) -> None:
    process = workers.start("app:graph", "--drain", str(WITHIN))
    slow = workers.accept(("a", "slow"))
    workers.until(lambda: "answer slow" in workers.notes())
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGTERM)
    workers.until(lambda: "claims nothing more" in workers.log(process))
    workers.free()
    assert workers.ended(process) == 0
    assert workers.wait(slow)[0].attempts == 1


@pytest.mark.slow
def test_it_works_for_its_tenant_only_or_for_every_tenant(workers: Workers) -> None:
    tickets = {name: workers.accept(("a", f"for {name}"), tenant=name) for name in ("", "ada", "eve")}
    process = workers.start("app:graph", "--tenant", "ada")
    assert workers.wait(tickets["ada"])[0].state == DONE
    process.send_signal(signal.SIGTERM)
    assert workers.ended(process) == 0
    assert workers.notes() == ["first for ada", "answer for ada"]
    workers.start("app:graph", "--all-tenants")
    assert [workers.wait(mine)[0].state for mine in tickets.values()] == [DONE] * 3
    assert len(workers.notes()) == 6


def test_idle_it_stops_at_once(workers: Workers) -> None:
    process = workers.start("app:graph", "--drain", str(LEASE))
    process.send_signal(signal.SIGTERM)
    assert workers.ended(process) == 0
    assert "it had no runs" in workers.log(process)


READY = ("--db", "sqlite:///ready.db")


@pytest.mark.parametrize(
    ("words", "mend"),
    [
        (("nowhere:graph", *READY), "there is no module 'nowhere', neither installed nor in "),
        (("json.nowhere:graph", *READY), "there is no module 'json.nowhere'"),
        (("broken_app:grpah", *READY), "'broken_app' has no 'grpah'; it has graph, pathless"),
        (("broken_app:number", *READY), "is not a graph but of type int; name a graph"),
        (("broken_app:wrong", *READY), "is not a graph but of type int; name a graph"),
        (("broken_app:with_arguments", *READY), "requires arguments other than a run's config"),
        (("broken_app:failing", *READY), "broken_app.py, line 16: LookupError: the key is missing"),
        (("broken_app:pathless", *READY), "cannot be loaded: ValueError: Graph must have an entrypoint"),
        (("broken_app", *READY), "'broken_app' names no graph; write broken_app:graph"),
        (("./broken_ap.py:graph", *READY), "broken_ap.py; did you mean broken_app.py?"),
        (("brokn_app:graph", *READY), "did you mean broken_app.py?"),
        ((), "which graph? Pass a place, e.g. perdure worker app:graph"),
        (("./nowhere.py:graph", *READY), "nowhere.py; check the path, which starts at "),
        (("=broken_app:graph", *READY), "write name=module:graph"),
        (("broken_app:graph", "broken_app:pathless", *READY), "name each, e.g. support=broken_app:pathless"),
        (("needy_app:graph", *READY), "needy_app.py, line 1: ModuleNotFoundError: No module named 'no_such_"),
        (("raising_app:graph", *READY), "raising_app.py, line 3: JSONDecodeError: "),
        (("leaving_app:graph", *READY), "leaving_app.py, line 1: SystemExit: 3"),
        (("garbled_app:graph", *READY), "SyntaxError: invalid syntax (garbled_app.py, line 1)"),
        (("broken_app:graph", "--channels", "broken_app:number", *READY), "name a mapping, e.g. {"),
        (("broken_app:graph", "--channels", "broken_app:mixed", *READY), "map names to Channel(send)"),
        (("broken_app:graph", "--channels", "broken_app:unnamed", *READY), "a channel needs a name"),
        (("broken_app:graph", "--channels", "broken_app:patient", *READY), "make the lease longer"),
        (("broken_app:graph", "--lease", "0", *READY), "lease is 0.0 s; it has to be more than 0"),
        (("broken_app:graph", "--concurrency", "0", *READY), "concurrency is 0; it has to be at least 1"),
        (("broken_app:graph", "--drain", "-1", *READY), "drain is -1.0 s; it cannot be less than 0"),
        (("broken_app:graph",), "which database? Pass --db"),
        (("broken_app:graph", "--db", "memory://"), "no message would ever get here"),
        (("broken_app:graph", "--db", "mysql://x/y"), "unknown scheme 'mysql'"),
        (("broken_app:graph", "--db", "sqlite:///none.db"), "perdure migrate --db sqlite:///none.db"),
        (("broken_app:graph", "--db", "sqlite:////no/such/folder/t.db"), "/no/such/folder"),
        (
            ("broken_app:graph", "--tenant", "ada", "--all-tenants", *READY),
            "exclude each other; leave one out",
        ),
    ],
)
def test_what_cannot_work_stops_it_with_one_sentence(
    perdure_worker: Run_, words: tuple[str, ...], mend: str
) -> None:
    code, out, err = perdure_worker(*words)
    assert (code, out) == (1, "")
    assert err.startswith("perdure: ")
    assert err.count("\n") == 1
    assert mend in err


def test_a_secret_of_the_url_is_not_shown_when_nothing_answers(perdure_worker: Run_) -> None:
    pytest.importorskip("psycopg", reason='pip install "perdure[postgres]"')
    url = "postgresql://ada:s3cret@127.0.0.1:1/threads"
    code, _, err = perdure_worker("broken_app:graph", "--db", url)
    assert code == 1
    assert err.startswith("perdure: ")
    assert "127.0.0.1:1" in err
    assert "s3cret" not in err


def test_help_teaches_with_an_example_and_the_defaults_as_they_are(perdure_worker: Run_) -> None:
    code, out, _ = perdure_worker("--help")
    assert code == 0
    assert "perdure worker app:graph --db" in out
    told = {name: meta.__metadata__[0].show_default for name, meta in _options().items()}
    for name in ("concurrency", "lease", "poll", "attempts", "drain"):
        assert told[name] == f"{getattr(Settings(), name):g}"
    assert Settings().deadline is None


def _options() -> dict[str, Any]:
    from typing import get_type_hints

    return {
        name: hint
        for name, hint in get_type_hints(worker, include_extras=True).items()
        if hasattr(hint, "__metadata__")
    }
