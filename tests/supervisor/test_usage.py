"""Sums of calls stay bounded, and other events are ignored."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.supervisor import Usage, usage


def call(user: str, tenant: str = "", **more: Any) -> dict[str, Any]:
    counted = {"hop": "write", "took": 500_000, "input_tokens": 3, "output_tokens": 4}
    return {"tenant": tenant, "user": user, **counted, **more}


def test_calls_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage, "_USERS_MAX", 2)
    sums = Usage()
    with sums.span("run", {}):
        sums.event("run.claimed", {})
        for user in ("ada", "bob", "ada", "cyd"):
            sums.event("model.called", call(user, cost=0.5))
    assert list(sums.by_user()) == ["ada", "cyd"], "the user of the oldest call is left out"
    ada = sums.by_user()["ada"]
    assert (ada.calls, ada.input_tokens, ada.output_tokens, ada.seconds, ada.cost) == (2, 6, 8, 1.0, 1.0)
    assert sums.by_hop()["write"].calls == 4
    sums.event("model.called", call("ada", "acme"))
    assert sums.by_user("acme")["ada"].calls == 1
