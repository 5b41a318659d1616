"""The commands on memories, as a shell sees them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

import perdure
from perdure.memory import Memory
from perdure.runtime import Agent, Runtime
from perdure.runtime.agent_memory.memory_turns import lane_of
from tests.backends import BACKENDS, EMPTY
from tests.cli.test_commands import Shell, shell
from tests.conversation.models import Scripted
from tests.runtime.agent_memory.test_run_memory import graph, of, policy
from tests.runtime.graphs import eventually_stored

__all__ = ["shell"]


def filled(url: str) -> str:
    """Store facts of two users; return the id of one."""
    with perdure.connect_sync(url, migrate=True) as db:
        ada = Memory(db.store(), "ada@example.org")
        old = ada.remember("Lives in Lisbon.")
        fact = ada.remember("Lives in Porto.", supersedes=[old.id])
        ada.summarise("t1", "They talked\nabout homes.")
        Memory(db.store(), "bob").remember("Sings.")
    return fact.id


def test_users_and_what_is_known_of_one_are_listed(shell: Shell, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 't.db'}"
    fact = filled(url)
    assert shell("memory", "ls", "--db", url).stdout.split() == ["ada@example.org", "bob"]
    listed = shell("memory", "ls", "--user", "ada@example.org", "--db", url).stdout
    assert fact in listed
    assert "Lives in Porto." in listed
    assert "They talked about homes." in listed
    assert "Lisbon" not in listed
    history = shell("memory", "ls", "--user", "ada@example.org", "--history", "--json", "--db", url).stdout
    assert [json.loads(line)["text"] for line in history.splitlines()][:2] == [
        "Lives in Lisbon.",
        "Lives in Porto.",
    ]
    assert "Nothing is known" in shell("memory", "ls", "--user", "eve", "--db", url).stdout


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_user_is_exported_and_forgotten_on_every_backend(backend: str, shell: Shell) -> None:
    if backend == "memory":
        pytest.skip("a database in memory is not shared with a command")
    with EMPTY[backend]() as url:
        fact = filled(url)
        who = ("--user", "ada@example.org", "--db", url)
        exported = json.loads(shell("memory", "export", *who).stdout)
        assert [len(exported[kind]) for kind in ("facts", "summaries")] == [2, 1]
        assert shell("memory", "forget", *who).returncode == 1
        assert "1 entries removed" in shell("memory", "forget", fact, "--yes", *who).stdout
        removed = shell("memory", "forget", "--yes", "--json", *who).stdout
        assert json.loads(removed) == {"user": "ada@example.org", "removed": 2}
        assert "Nothing was known" in shell("memory", "forget", "--yes", *who).stdout
        assert shell("memory", "ls", "--db", url).stdout.split() == ["bob"]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_user_who_is_known_in_another_tenant_is_not_said_to_be_unknown(backend: str, shell: Shell) -> None:
    """A server that verifies tokens has a tenant for each user by default."""
    if backend == "memory":
        pytest.skip("a database in memory is not shared with a command")
    with EMPTY[backend]() as url:
        filled(url)
        with perdure.connect_sync(url) as db:
            Memory(db.store(tenant="acme/eve"), "eve").remember("Sings.")
            Memory(db.store(tenant="other"), "eve").remember("Sings.")
            Memory(db.store(tenant="other"), "eve").forget()
        who = ("--user", "eve", "--db", url)
        for command in (("ls",), ("export",), ("forget", "--yes"), ("forget", "--yes", "--json")):
            refused = shell("memory", *command, *who)
            assert (refused.returncode, refused.stdout) == (1, ""), command
            assert "in 1 of them; pass --tenant acme/eve" in " ".join(refused.stderr.split())
        assert "1 entries removed" in shell("memory", "forget", "--yes", "--tenant", "acme/eve", *who).stdout
        assert "Nothing was known" in shell("memory", "forget", "--yes", *who).stdout


def test_an_unknown_fact_is_named(shell: Shell, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 't.db'}"
    filled(url)
    refused = shell("memory", "forget", "gone", "--user", "bob", "--yes", "--db", url)
    assert refused.returncode == 1
    assert "has no memory 'gone'" in refused.stderr


def test_turns_that_wait_for_their_extraction_are_forgotten_too(shell: Shell, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 't.db'}"

    async def waiting() -> int:
        agent = Agent(graph(Scripted()), memory=policy(debounce=60.0, max_wait=60.0))
        async with perdure.connect(url, migrate=True) as db, Runtime(db, agent) as runtime:
            await runtime.wait(await runtime.accept("t", "I sing", config=of("ada")))

            async def has_arrived() -> bool:
                return bool(await runtime.messages(lane_of("ada")))

            await eventually_stored(has_arrived)
            return len(await runtime.messages(lane_of("ada")))

    assert asyncio.run(waiting()) == 1
    shell("memory", "forget", "--user", "ada", "--yes", "--db", url)

    async def left() -> int:
        async with perdure.connect(url) as db, Runtime(db, graph(Scripted()), works=False) as runtime:
            return len(await runtime.messages(lane_of("ada")))

    assert asyncio.run(left()) == 0


@pytest.mark.parametrize("by", ["environment", "file"])
def test_a_store_of_its_own_is_listed_exported_and_forgotten(
    by: str, shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, store = (f"sqlite:///{tmp_path / name}" for name in ("threads.db", "store.db"))
    filled(store)
    with perdure.connect_sync(url, migrate=True):
        pass
    if by == "environment":
        monkeypatch.setenv("PERDURE_STORE_DATABASE_URL", store)
    else:
        (tmp_path / "perdure.toml").write_text(f'[store]\ndatabase_url = "{store}"\n')
    who = ("--user", "bob", "--db", url)
    assert shell("memory", "ls", "--db", url).stdout.split() == ["ada@example.org", "bob"]
    assert [each["text"] for each in json.loads(shell("memory", "export", *who).stdout)["facts"]] == [
        "Sings."
    ]
    assert "1 entries removed" in shell("memory", "forget", "--yes", *who).stdout
    assert shell("memory", "ls", "--db", url).stdout.split() == ["ada@example.org"]


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (("ls", "--user", ""), "1 to 200 characters"),
        (("export", "--user", "u" * 201), "1 to 200 characters"),
        (("forget", "--yes", "--user", ""), "1 to 200 characters"),
        (("ls", "--namespace", ""), "empty"),
        (("export", "--user", "ada", "--namespace", "a.b"), "period"),
    ],
)
def test_a_user_or_namespace_that_cannot_be_is_refused(
    words: tuple[str, ...], part: str, shell: Shell, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path / 't.db'}"
    filled(url)
    done = shell("memory", *words, "--db", url)
    assert (done.returncode, done.stdout) == (2, "")
    assert part in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
