"""What becomes of what runs told for clients of the streaming protocol, and which of it they get."""

from __future__ import annotations

import json
from itertools import chain
from typing import Any

import pytest

from perdure.engine.queue.events import END
from perdure.runtime import Event
from perdure.runtime.json_encoding import to_json
from perdure.server.streaming.protocol_events import CHANNELS, EventFilter, is_channel, project

ALL = EventFilter(frozenset(CHANNELS))


def event(name: str, data: Any, seq: int = 1_000_007) -> Event:
    return Event(seq, "r", name, to_json(data))


def said(told: Event, wanted: EventFilter = ALL) -> list[dict[str, Any]]:
    return [json.loads(one.text) for one in project(told, wanted)]


def test_a_run_begins_and_ends() -> None:
    begun = said(event("metadata", {"run_id": "r", "attempt": 1, "graph_id": "chat"}))
    assert begun == [
        {
            "type": "event",
            "event_id": "1000007",
            "seq": 1_000_007,
            "method": "lifecycle",
            "params": {
                "namespace": [],
                "timestamp": 1000,
                "data": {"event": "running", "graph_name": "chat"},
            },
        }
    ]
    ends = [
        ({"state": "done"}, {"event": "completed"}),
        ({"state": "waiting"}, {"event": "interrupted"}),
        ({"state": "interrupted"}, {"event": "interrupted"}),
        ({"state": "rolled_back"}, {"event": "interrupted"}),
        ({"state": "failed", "error": "ValueError: no"}, {"event": "failed", "error": "ValueError: no"}),
    ]
    for told, data in ends:
        (end,) = said(event(END, {"run_id": "r", **told}))
        assert end["params"]["data"] == data


def test_values_are_those_of_the_state_alone() -> None:
    (values,) = said(event("values|a:1|b:2", {"x": "é", "__interrupt__": [{"id": "i", "value": 1}]}))
    assert values["params"] == {"namespace": ["a:1", "b:2"], "timestamp": 1000, "data": {"x": "é"}}
    (values,) = said(event("values", {"text": 'the word "__interrupt__" in a text'}))
    assert values["params"]["data"] == {"text": 'the word "__interrupt__" in a text'}


def test_each_question_is_an_event_with_a_number_of_its_own() -> None:
    asked = {"__interrupt__": [{"id": "i", "value": {"q": 1}}, {"id": "j", "value": None}]}
    first, second = said(event("updates|n:1", asked))
    assert (first["seq"], second["seq"]) == (1_000_006, 1_000_007)
    assert first["event_id"] != second["event_id"]
    assert first["method"] == second["method"] == "input.requested"
    assert first["params"]["namespace"] == ["n:1"]
    assert first["params"]["data"] == {"interrupt_id": "i", "payload": {"q": 1}, "value": {"q": 1}}
    assert said(event("updates", asked), EventFilter(frozenset({"updates"}))) == []
    assert said(event("updates", {"__interrupt__": []})) == []


def test_each_node_that_updated_the_state_is_an_event() -> None:
    one, two = said(event("updates", {"a": {"x": 1}, "b": None}))
    assert [one["seq"], two["seq"]] == [1_000_006, 1_000_007]
    assert one["params"]["data"] == {"node": "a", "values": {"x": 1}}
    assert (one["params"]["node"], two["params"]["node"]) == ("a", "b")
    assert said(event("updates", {"a": 1}), EventFilter(frozenset({"input"}))) == []


def test_what_a_graph_writes_is_told_under_its_name() -> None:
    named, plain = event("custom", {"name": "a2a", "payload": {"x": 1}}), event("custom", [1])
    assert said(named)[0]["params"]["data"] == {"name": "a2a", "payload": {"x": 1}}
    assert said(plain)[0]["params"]["data"] == {"payload": [1]}
    only = EventFilter(frozenset({"custom:a2a"}))
    assert len(said(named, only)) == 1
    assert said(plain, only) == []
    assert said(event("custom", {"name": "other", "payload": 1}), only) == []


def test_checkpoints_are_told_as_references() -> None:
    told = {
        "config": {"configurable": {"checkpoint_id": "c2"}},
        "parent_config": {"configurable": {"checkpoint_id": "c1"}},
        "metadata": {"source": "loop", "step": 3},
        "values": {"large": 1},
    }
    (reference,) = said(event("checkpoints", told))
    assert reference["params"]["data"] == {"id": "c2", "parent_id": "c1", "step": 3, "source": "loop"}


def test_what_was_told_in_the_form_in_which_it_is_sent_is_sent() -> None:
    (message,) = said(event("protocol/messages|a:1", {"data": {"event": "message-start"}, "node": "talk"}))
    assert message["method"] == "messages"
    data = {"event": "message-start"}
    assert message["params"] == {"namespace": ["a:1"], "timestamp": 1000, "data": data, "node": "talk"}


@pytest.mark.parametrize("channel", CHANNELS)
def test_a_channel_has_only_what_is_its_own(channel: str) -> None:
    told = [
        event("metadata", {}),
        event("values", {}),
        event("tasks", {"id": "t"}),
        event("checkpoints", {}),
        event("custom", 1),
        event("updates", {"a": 1}),
        event("updates", {"__interrupt__": [{"id": "i"}]}),
        event("protocol/messages", {"data": 1}),
        event("protocol/tools", {"data": 1}),
        event("messages", [{}, {}]),
        event("debug", {}),
    ]
    wanted = EventFilter(frozenset({channel}))
    methods = [one["method"] for one in chain.from_iterable(said(one, wanted) for one in told)]
    assert methods == ["input.requested" if channel == "input" else channel]


def test_namespaces_are_prefixes_and_the_depth_is_below_them() -> None:
    def reached(namespaces: list[tuple[str, ...]] | None, depth: int | None) -> list[str]:
        wanted = EventFilter(frozenset({"values"}), None if namespaces is None else tuple(namespaces), depth)
        names = ["values", "values|a:1", "values|a:2", "values|a:1|b:1", "values|c:1"]
        return [name for name in names if said(event(name, {}), wanted)]

    assert len(reached(None, None)) == len(reached([()], None)) == len(reached(None, 0)) == 5
    assert reached([()], 0) == ["values"]
    assert reached([()], 1) == ["values", "values|a:1", "values|a:2", "values|c:1"]
    assert reached([("a",)], None) == ["values|a:1", "values|a:2", "values|a:1|b:1"]
    assert reached([("a:1",)], 0) == ["values|a:1"]
    assert reached([("a:2",), ("c",)], 0) == ["values|a:2", "values|c:1"]


def test_channels_are_those_of_the_protocol() -> None:
    assert all(map(is_channel, [*CHANNELS, "custom:x"]))
    assert not any(map(is_channel, ["", "debug", "custom:", "Values", None, 1]))


def test_what_a_graph_writes_has_its_own_fields_and_a_payload() -> None:
    wanted = EventFilter(frozenset({"custom"}))
    for written, expected in (
        ({"percent": 50}, {"percent": 50, "payload": {"percent": 50}}),
        ({"name": "p", "percent": 50}, {"name": "p", "percent": 50, "payload": {"name": "p", "percent": 50}}),
        ({"name": "p", "payload": 7, "more": 1}, {"name": "p", "payload": 7, "more": 1}),
        ("text", {"payload": "text"}),
    ):
        (told,) = project(event("custom", written), wanted)
        assert json.loads(told.text)["params"]["data"] == expected


def test_a_reminder_is_a_custom_event_of_its_name() -> None:
    asked = [{"id": "q", "until": 1_000_000}, {"id": "s", "until": None}]
    event = Event(7, "r", "reminder", to_json({"run_id": "r", "interrupts": asked}))
    told = {
        "run_id": "r",
        "interrupts": [{"id": "q", "until": "1970-01-01T00:00:01.000000+00:00"}, {"id": "s", "until": None}],
    }
    for channel in ("custom", "custom:reminder"):
        (found,) = project(event, EventFilter(frozenset({channel})))
        shown = json.loads(found.text)
        assert (found.seq, found.method) == (7, "custom")
        assert shown["params"]["data"]["payload"] == {"name": "reminder", **told}
    assert not list(project(event, EventFilter(frozenset({"values", "custom:other"}))))
