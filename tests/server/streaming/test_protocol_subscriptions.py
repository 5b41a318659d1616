"""What a subscription may ask for, and what is kept of it."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.model.records import Partition
from perdure.server.auth.identity import Refusal
from perdure.server.streaming.protocol_events import EventFilter
from perdure.server.streaming.protocol_subscriptions import _Ends, read


@pytest.mark.parametrize(
    ("asked", "part"),
    [
        ({"channels": ["custom:" + "x" * 200]}, "channels.0"),
        ({"channels": ["values"], "namespaces": [["x" * 501]]}, "namespaces.0.0"),
        ({"channels": ["values"], "namespaces": [["x"] * 101]}, "namespaces.0"),
    ],
)
def test_a_subscription_is_bounded(asked: dict[str, Any], part: str) -> None:
    with pytest.raises(Refusal) as refused:
        read(asked)
    assert refused.value.status == 400
    assert refused.value.detail.startswith(f"{part}: ")


def test_of_a_filter_only_a_digest_is_kept() -> None:
    ends, place = _Ends(), Partition("", "t")
    names = [f"custom:name-{number}" for number in range(50)]
    ends.note_sent(place, "run", EventFilter(frozenset(names), (("left", "right"),), 1))
    assert ends.was_sent(place, "run", EventFilter(frozenset(reversed(names)), (("left", "right"),), 1))
    for other in (
        EventFilter(frozenset(names[1:]), (("left", "right"),), 1),
        EventFilter(frozenset(names), (("left",), ("right",)), 1),
        EventFilter(frozenset(names), (), 1),
        EventFilter(frozenset(names), None, 1),
        EventFilter(frozenset(names), (("left", "right"),)),
    ):
        assert not ends.was_sent(place, "run", other)
    assert "name-" not in repr(ends._sent)
