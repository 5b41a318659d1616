"""Limits over all processes as a shell sees and changes them.

Covers perdure.runtime.operations.limit_states.
"""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import pytest

import perdure
from perdure.database.base import handle_of
from perdure.engine import limits as stored
from perdure.limits import SharedLimit
from perdure.model import limits as model
from perdure.runtime.limits.limiter import CallTurn, limiter_of
from tests.cli.running import run_cli

LIMIT = SharedLimit(by=("user",), concurrency=4, rate=60, tokens=6000, budget=5.0)


@pytest.fixture(autouse=True)
def used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A database in which two users have used a limit, and one holds a place."""
    # The lease of the process that holds it lasts longer than a test on a busy machine.
    monkeypatch.setattr(model, "LEASE_US", 3_600_000_000)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PERDURE_DB", "sqlite:///threads.db")

    async def main() -> None:
        async with perdure.connect("sqlite:///threads.db", migrate=True) as db:
            limiter = limiter_of(handle_of(db))
            limiter.declare({"daily": LIMIT})
            for user in ("ada", "b\x1b[31mob"):
                turn = CallTurn([("daily", {"user": user}, user)])
                await limiter.acquire(turn, "", 20)
                limiter.end(turn, tokens=100, cost=2_500_000)
            await limiter.acquire(CallTurn([("daily", {"user": "ada"}, "ada")]), "", 20)

    asyncio.run(main())


def rows(text: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in text.splitlines()]


def test_what_is_used_is_listed(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run_cli(monkeypatch, capfd, "limits", "ls")
    assert code == 0
    assert "daily of user ada" in out
    assert "1 of 4 at once" in out
    assert "2.5 of 5 spent" in out
    assert re.search("[0-5] of 5 left at once, 60 a minute", out)
    assert "\x1b" not in out
    Path("perdure.toml").write_text('[prices]\ncurrency = "EUR"\n[prices.models.m]\ninput = 1\noutput = 1\n')
    assert "2.5 of 5 EUR spent, 2.5 left" in run_cli(monkeypatch, capfd, "limits", "ls")[1]
    code, out, _ = run_cli(monkeypatch, capfd, "limits", "ls", "daily", "--json")
    found = {row["key"]["user"]: row for row in rows(out)}  # type: ignore[index]
    assert found.keys() == {"ada", "b\x1b[31mob"}
    assert found["ada"]["budget"]["spent"] == 2.5  # type: ignore[index]
    assert found["ada"]["of"] == "model"
    assert rows(run_cli(monkeypatch, capfd, "limits", "ls", "other", "--json")[1]) == []


def test_the_key_nearest_to_its_end_comes_first(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    async def spend() -> None:
        async with perdure.connect("sqlite:///threads.db") as db:
            limiter = limiter_of(handle_of(db))
            limiter.declare({"money": SharedLimit(by=("user",), budget=5.0)})
            for user, cost in (("carl", 4_500_000), ("dora", 1_000_000), ("emma", 2_000_000)):
                turn = CallTurn([("money", {"user": user}, user)])
                await limiter.acquire(turn, "", 20)
                limiter.end(turn, tokens=1, cost=cost)

    asyncio.run(spend())
    lines = run_cli(monkeypatch, capfd, "limits", "ls", "money")[1].splitlines()
    shares = [int(line.split("%")[0]) for line in lines]
    assert shares == sorted(shares, reverse=True)
    assert lines[0].startswith(" 90%  money of user carl  calls of models: 4.5 of 5 spent, 0.5 left")
    assert lines[-1].startswith(" 20%  money of user dora")
    first, more = run_cli(monkeypatch, capfd, "limits", "ls", "money", "-n", "1")[1].splitlines()
    assert (first, more) == (lines[0], "There are 3 keys; raise --limit, or name a limit.")
    (entry,) = rows(run_cli(monkeypatch, capfd, "limits", "ls", "money", "-n", "1", "--json")[1])
    assert entry["share"] == 0.9


def test_one_key_is_shown_with_its_processes(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = run_cli(monkeypatch, capfd, "limits", "show", "daily", "--key", "user=ada", "--json")
    (entry,) = rows(out)
    assert code == 0
    assert [process["places"] for process in entry["processes"]] == [1]  # type: ignore[attr-defined]
    code, _, err = run_cli(monkeypatch, capfd, "limits", "show", "daily", "--key", "user=nobody")
    assert code == 1
    assert "limit 'daily' of user 'nobody': nothing of it is in use" in err
    code, _, err = run_cli(monkeypatch, capfd, "limits", "show", "daily", "--key", "nobody")
    assert code == 2
    assert "user=ada" in err


def test_amounts_are_set_and_cleared(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = run_cli(monkeypatch, capfd, "limits", "set", "daily", "--rate", "30", "--json")
    assert (code, rows(out)) == (0, [{"limit": "daily", "set": {"rate": 30.0}}])
    run_cli(monkeypatch, capfd, "limits", "set", "daily", "--concurrency", "2")
    _, out, _ = run_cli(monkeypatch, capfd, "limits", "ls")
    assert "daily  is set to rate 30.0, concurrency 2" in out

    async def amounts() -> object:
        async with perdure.connect("sqlite:///threads.db") as db:
            return await handle_of(db).arun(stored.read_amounts(""))

    assert asyncio.run(amounts()) == {"daily": {"rate": 30.0, "concurrency": 2}}
    for wrong, words in (
        (("--rate", "nan"), "rate is a number above 0"),
        (("--rate", "-1"), "rate is a number above 0"),
        (("--concurrency", "0"), "concurrency is a whole number from 1"),
        (("--at-end", "explode"), "at_end is 'refuse' or 'wait'"),
    ):
        code, _, err = run_cli(monkeypatch, capfd, "limits", "set", "daily", *wrong)
        assert code == 1
        assert words in err
        assert "nothing was set" in err
    assert run_cli(monkeypatch, capfd, "limits", "set", "daily")[0] == 2
    assert run_cli(monkeypatch, capfd, "limits", "set", "daily", "--clear")[0] == 0
    assert asyncio.run(amounts()) == {}


def test_a_key_begins_anew_and_keeps_who_is_under_way(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = run_cli(monkeypatch, capfd, "limits", "reset", "daily", "--key", "user=ada")
    assert code == 0
    assert "daily of user ada: begins anew" in out
    _, out, _ = run_cli(monkeypatch, capfd, "limits", "show", "daily", "--key", "user=ada", "--json")
    (entry,) = rows(out)
    assert entry["budget"]["spent"] == 0  # type: ignore[index]
    assert entry["concurrency"]["used"] == 1  # type: ignore[index]
    code, _, err = run_cli(monkeypatch, capfd, "limits", "reset", "daily")
    assert code == 1
    assert "nothing of it is in use" in err
