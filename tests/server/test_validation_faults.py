"""A value that a request may not have is named, with the values that there are."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.runtime.options import StreamOptions
from perdure.server.validation_faults import fault_text, join_faults
from tests.server.acceptance.saying import detail
from tests.server.acceptance.serving import run
from tests.server.hosting import serving

MODES = "values, updates, messages, messages-tuple, custom, tasks, checkpoints, debug, events"
QUOTED = ", ".join(map(repr, MODES.split(", ")[:-1])) + " or 'events'"


@run
async def test_an_unknown_stream_mode_is_named_at_every_route(near: str) -> None:
    new: dict[str, Any] = {"assistant_id": "aware", "input": {"messages": []}}
    async with serving(near) as server:
        client = await server.client()
        http = await server.http()
        await client.threads.create(thread_id="t", graph_id="aware")
        cron = {**new, "schedule": "0 0 1 1 *"}
        for path, body in (
            ("/threads/t/runs", new),
            ("/threads/t/runs/stream", new),
            ("/threads/t/runs/wait", new),
            ("/runs/stream", new),
            ("/threads/t/runs/crons", cron),
        ):
            for modes in ("steps", ["values", "steps"]):
                answer = await http.post(path, json={**body, "stream_mode": modes})
                assert answer.status_code == 422, (path, answer.text)
                assert f"'steps' is none of {QUOTED}" in detail(answer), path
        created = await client.runs.create("t", "aware", input={"messages": []})
        answer = await http.get(f"/threads/t/runs/{created['run_id']}/stream?stream_mode=steps&stream_mode=x")
        assert answer.status_code == 422
        assert detail(answer) == f"there is no stream mode 'steps' or 'x' of a run; there are {MODES}"
        answer = await http.get("/threads/t/stream?stream_mode=values")
        assert answer.status_code == 422
        assert "no stream mode 'values' of a thread; there are run_modes, lifecycle" in detail(answer)
        answer = await http.post("/threads/search", json={"status": "asleep"})
        assert answer.status_code == 422
        assert detail(answer) == "status: 'asleep' is none of 'idle', 'busy', 'interrupted' or 'error'"


def test_the_runtime_names_an_unknown_stream_mode() -> None:
    unknown: Any = ("values", "steps")
    with pytest.raises(ValueError, match=f"no stream mode 'steps' of a run; there are {MODES}, protocol"):
        StreamOptions(modes=unknown)
    with pytest.raises(ValueError, match=f"no stream mode is named; there are {MODES}"):
        StreamOptions(modes=())
    text: Any = "values"
    with pytest.raises(TypeError, match=r"modes takes a sequence, not str; for one name write \[name\]"):
        StreamOptions(modes=text)


def test_a_long_value_is_cut_and_a_place_is_whole() -> None:
    fault = {
        "type": "literal_error",
        "loc": ("body", "path", "status"),
        "msg": "Input should be 'a'",
        "input": "x" * 1000,
        "ctx": {"expected": "'a' or 'b'"},
    }
    assert join_faults([fault]) == f"path.status: '{'x' * 59}… is none of 'a' or 'b'"
    assert fault_text({**fault, "loc": ("status",), "input": 1}, before="params.").startswith(
        "params.status: 1 is none of"
    )


@run
async def test_a_body_that_is_not_one_json_value_is_refused_in_a_sentence(near: str) -> None:
    async with serving(near) as server:
        http = await server.http()
        headers = {"content-type": "application/json"}
        answer = await http.post("/threads/search", content=b'{"limit":1}{"limit":2}', headers=headers)
        assert answer.status_code == 422
        assert detail(answer) == "the body is not one JSON value (Extra data at character 11); send JSON"


@run
async def test_an_error_of_a_limit_that_all_backends_share_names_it(near: str) -> None:
    async with serving(near) as server:
        http = await server.http()
        item = {"namespace": ["b"], "key": "k" * 3000, "value": {}}
        for name, body in (("key", item), ("namespace", {**item, "key": "k", "namespace": ["l" * 3000]})):
            answer = await http.put("/store/items", json=body)
            assert answer.status_code == 413
            assert detail(answer).startswith(f"the {name} ")
            assert "bytes, at most 2000 are taken" in detail(answer)
        answer = await http.post("/threads", json={"metadata": {"a": "x" * 1_000_000}})
        assert answer.status_code == 413
        assert "at most 262144 are taken" in detail(answer)
