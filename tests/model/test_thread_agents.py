"""The latest checkpoint says whose thread it is, unless a client has said so since."""

from __future__ import annotations

from typing import Any

from perdure.model import thread_agents

FIRST = {"graph_id": "first", "assistant_id": "f"}
SECOND = {"graph_id": "second", "assistant_id": "s"}


def _document(**metadata: Any) -> dict[str, Any]:
    return {"metadata": metadata, "created_at": 1, "ttl": None}


def test_the_latest_checkpoint_decides() -> None:
    body = thread_agents.add_agents(_document(**FIRST, a=1), [SECOND])
    assert thread_agents.choose_metadata(body, "c2", SECOND) == {**SECOND, "a": 1}
    assert thread_agents.choose_metadata(body, "c1", FIRST) == {**FIRST, "a": 1}
    assert thread_agents.choose_metadata(body, "c2", {"graph_id": "second"}) == {"graph_id": "second", "a": 1}
    assert thread_agents.choose_metadata(body, "c1", {"graph_id": "first"}) == {**FIRST, "a": 1}
    assert thread_agents.choose_metadata(body, "c3", {}, "second") == {"graph_id": "second", "a": 1}
    assert thread_agents.choose_metadata(body, None, {}) == {**FIRST, "a": 1}


def test_what_a_client_chose_counts_until_the_next_checkpoint() -> None:
    body = thread_agents.change_metadata(_document(**FIRST), {"graph_id": "second"}, "c1")
    assert thread_agents.choose_metadata(body, "c1", FIRST) == {"graph_id": "second", "assistant_id": "f"}
    assert thread_agents.choose_metadata(body, "c2", FIRST) == FIRST
    assert FIRST in thread_agents.list_agents(body)
    assert thread_agents.change_metadata(_document(**FIRST), {"a": 1}, "c1") == _document(**FIRST, a=1)


def test_one_agent_alone_needs_no_checkpoint() -> None:
    body = thread_agents.add_agents(_document(**FIRST), [FIRST, {"graph_id": "first"}])
    assert body == _document(**FIRST)
    assert not thread_agents.depends_on_checkpoint(body, ["first", "first"])
    assert thread_agents.depends_on_checkpoint(body, ["first", "second"])
    assert not thread_agents.depends_on_checkpoint(_document(), ["first"])
    assert thread_agents.depends_on_checkpoint(thread_agents.add_agents(body, [SECOND]), [])


def test_a_copy_names_all_that_a_thread_may_have() -> None:
    body = thread_agents.add_agents(_document(**FIRST, a=1), [SECOND])
    copy = {"metadata": body["metadata"], **thread_agents.copy_agents(body)}
    assert {**SECOND, "a": 1} in list(thread_agents.list_variants(copy))
    assert {**FIRST, "a": 1} in list(thread_agents.list_variants(copy))
    assert list(thread_agents.list_variants(_document(a=1))) == [{"a": 1}]
