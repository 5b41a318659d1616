"""What a worker says of its database's keys and password: counts and times, once for each change."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from langgraph.graph import START, MessagesState, StateGraph
from prometheus_client import CollectorRegistry

import perdure
from perdure import admin
from perdure.database.base import handle_of
from perdure.database.handle import DatabaseHandle
from perdure.inspector import thread_health
from perdure.inspector.access import LocalAccess
from perdure.model.times import to_micros
from perdure.model.values.chunks import Digester
from perdure.runtime.metrics import Metrics
from perdure.runtime.observers import Observers
from perdure.runtime.worker.credential_reports import CredentialReports
from perdure.storage.credentials import Endpoint, PasswordSource
from perdure.storage.memory import MemoryDriver
from perdure.storage.port import Driver, WrappingDriver
from tests.runtime import graphs
from tests.runtime.graphs import Heard, working
from tests.storage.climbers import eventually

AT = Endpoint("postgresql://app@db", "db", 5432, "app")
END = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)


class SigningIn(WrappingDriver):
    """A driver that signs in with the passwords of a source."""

    def __init__(self, source: PasswordSource, driver: Driver) -> None:
        super().__init__(driver)
        self.capabilities = replace(self.capabilities, password=source)

    def perform(self, effect: Any) -> Any:
        return self._inner.perform(effect)

    async def aperform(self, effect: Any) -> Any:
        return await self._inner.aperform(effect)


@contextmanager
def encrypted(tmp_path: Path) -> Iterator[perdure.SyncDatabase]:
    with perdure.connect_sync(f"sqlite:///{tmp_path}/t.db", encryption_key=b"k" * 32, migrate=True) as db:
        yield db


def reports_of(handle: DatabaseHandle, registry: CollectorRegistry, heard: Heard) -> CredentialReports:
    return CredentialReports(handle, Observers((Metrics(registry), heard)))


def test_keys_are_reported_at_the_start_and_after_a_rotation(tmp_path: Path) -> None:
    registry, heard = CollectorRegistry(), Heard()
    with encrypted(tmp_path) as db:
        reports = reports_of(handle_of(db), registry, heard)
        reports.report()
        reports.report()
        first = admin.encryption_keys(db)
        assert first is not None
        wrapped_at = to_micros(first.wrapped_at)
        assert heard.events == [("database.keys", {"data_keys": 1, "wrapped_at": wrapped_at})]
        assert registry.get_sample_value("perdure_keys_wrapped_timestamp_seconds") == wrapped_at / 1_000_000
        admin.rotate_keys(db, data_key=True)
        reports.report()
    assert heard.count("database.keys") == 2
    assert registry.get_sample_value("perdure_data_keys") == 2


def test_failed_renewals_of_a_password_are_counted_until_one_succeeds() -> None:
    answers: list[str | Exception] = [OSError("first"), OSError("second"), "token"]

    def provide() -> tuple[str, datetime]:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer, END

    source = PasswordSource(provide, "test", AT)
    registry, heard = CollectorRegistry(), Heard()
    handle = DatabaseHandle(SigningIn(source, MemoryDriver()), tenant="", digest=Digester())
    reports = reports_of(handle, registry, heard)
    reports.report()
    for failures in (1, 2):

        def has_failed(times: int = failures) -> bool:
            return source.peek() is None and source.state.failures == times

        eventually(has_failed)
        reports.report()
        assert registry.get_sample_value("perdure_password_failures") == failures
    source.current(5.0)
    reports.report()
    assert registry.get_sample_value("perdure_password_failures") == 0
    assert registry.get_sample_value("perdure_password_ends_timestamp_seconds") == END.timestamp()
    assert "token" not in repr(heard.events)


@pytest.mark.anyio
async def test_a_worker_and_the_console_report_them(tmp_path: Path) -> None:
    heard = Heard()
    graph = StateGraph(MessagesState).add_node("n", lambda state: {}).add_edge(START, "n").compile()
    with encrypted(tmp_path) as db:
        async with working(db, graph, observers=[heard]):
            await graphs.eventually(lambda: heard.count("database.keys"))
            seen = await thread_health.care(LocalAccess(handle_of(db), ""), {})
        keys = admin.encryption_keys(db)
    assert keys is not None
    assert seen["keys"] == {"data_keys": 1, "wrapped_at": to_micros(keys.wrapped_at)}
    assert seen["password"] is None
    assert heard.count("database.keys") == 1
