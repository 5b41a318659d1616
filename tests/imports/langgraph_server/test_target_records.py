"""Assistants and crons leave for a server: every version, once, and what is another one stays."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import pytest
from langgraph_sdk.client import SyncLangGraphClient

from perdure.engine.queue.crons import Cron
from perdure.engine.versioned_documents import Versioned
from perdure.errors import Conflict, NotAllowed, NotFound
from perdure.imports.langgraph_server.api import ServerApi
from perdure.imports.langgraph_server.target_records import ORIGINAL_ID, RecordsTarget
from tests.imports.langgraph_server import servers

DAY = 86_400_000_000
NOW = 1_900_000_000_000_000


class Served(NamedTuple):
    api: ServerApi
    client: SyncLangGraphClient


@pytest.fixture(scope="module", params=servers.KINDS)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder: Path = servers.project(tmp_path_factory.mktemp("server"))
    with servers.served(request.param, folder) as url, servers.client_of(url) as client:
        api = ServerApi(url)
        yield Served(api, client)
        api.close()


def version(number: int, name: str, **parts: Any) -> Versioned:
    body: dict[str, Any] = {
        "graph_id": "agent",
        "name": name,
        "description": None,
        "config": {},
        "context": {},
    }
    return Versioned("", {**body, "metadata": {"of": "test"}, **parts}, number, number, 0, 0)


def cron(name: str, **parts: Any) -> Cron:
    body: dict[str, Any] = {
        "assistant_id": "fe096781-5601-53d2-b2f6-0d3403f7e9ca",
        "thread_id": None,
        "schedule": {"expression": "0 9 1 1 *", "timezone": "Europe/Prague", "end": NOW + 400 * DAY},
        "payload": {"input": servers.said("hello"), "multitask_strategy": "enqueue"},
        "metadata": {"of": "test"},
        "on_run_completed": "delete",
        "enabled": True,
    }
    return Cron(name, {**body, **parts}, None, 0, 0, 1)


def test_every_version_arrives_once_and_the_current_one_is_current(served: Served) -> None:
    target, name = RecordsTarget(served.api), str(uuid4())
    versions = [
        version(1, "one", config={"tags": ["x"]}, description="said"),
        version(2, "two", config={"tags": []}, description="said", context={"model": "m"}),
        version(3, "three", description="said", context={"model": "m"}),
    ]
    assert target.write_assistant(name, versions[:2], 2) == "written"
    # It went on since; and somebody stopped the export before the choice of the current version.
    assert target.write_assistant(name, versions, 2) == "written"
    assert target.write_assistant(name, versions, 2) == "unchanged"
    there: Any = served.client.assistants.get(name)
    assert (there["version"], there["name"], there["context"]) == (2, "two", {"model": "m"})
    assert [held["name"] for held in served.api.versions(name)] == ["one", "two", "three"]
    served.client.assistants.update(name, name="theirs")
    with pytest.raises(Conflict, match=f"assistant {name} was changed at"):
        target.write_assistant(name, versions, 2)
    with pytest.raises(Conflict, match=f"version 1 of assistant {name} differs at .*: name differ"):
        target.write_assistant(name, [version(1, "other", config={"tags": ["x"]}, description="said")], 1)
    assert len(served.api.versions(name)) == 4


def test_an_assistant_of_a_graph_that_is_not_there_is_refused_by_name(served: Served) -> None:
    with pytest.raises((NotFound, NotAllowed), match="answers 4"):
        RecordsTarget(served.api).write_assistant(str(uuid4()), [version(1, "one", graph_id="nowhere")], 1)


def test_a_cron_arrives_once_with_its_zone_and_its_end(served: Served) -> None:
    name = str(uuid4())
    wanted = cron(name, enabled=False)
    assert RecordsTarget(served.api).write_cron(wanted, NOW) == "written"
    assert RecordsTarget(served.api).write_cron(wanted, NOW) == "unchanged"
    (there,) = [one for one in served.api.crons() if one["metadata"].get(ORIGINAL_ID) == name]
    assert (there["schedule"], there["enabled"]) == ("0 9 1 1 *", False)
    assert there["payload"]["input"] == servers.said("hello")
    changed = cron(name, enabled=False, schedule={**wanted.body["schedule"], "expression": "5 9 1 1 *"})
    with pytest.raises(Conflict, match=f"cron {name} differs at .*: schedule differ"):
        RecordsTarget(served.api).write_cron(changed, NOW)
    past = cron(str(uuid4()), schedule={"expression": "0 9 1 1 *", "timezone": None, "end": NOW - 1})
    assert RecordsTarget(served.api).write_cron(past, NOW) == "ended"
    with pytest.raises((NotFound, NotAllowed), match="answers 4"):
        RecordsTarget(served.api).write_cron(cron(str(uuid4()), thread_id=str(uuid4())), NOW)
    assert len([one for one in served.api.crons() if one["metadata"].get("of") == "test"]) == 1
