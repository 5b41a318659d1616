"""What is looked at in a body before anything is done with it: numbers and texts that no value can have, and
its depth."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import ValidationError

from perdure.server.requests import DEPTH, NewRun, check_values
from tests.server.acceptance.saying import detail, said, state_values
from tests.server.acceptance.serving import run
from tests.server.hosting import Served, serving

TOO_LONG = (2**64, -(2**63) - 1, 10**400)
LONG = (2**64 - 1, -(2**63), 0, True)


def places(number: int) -> Iterator[tuple[str, str, Any, str]]:
    """Bodies that would be stored, and where the number stands in them."""
    message = {"messages": [{"role": "user", "content": "x", "additional_kwargs": {"n": number}}]}
    new: dict[str, Any] = {"assistant_id": "aware"}
    at = "/threads/t"
    for how in ("", "/wait", "/stream"):
        yield "POST", f"{at}/runs{how}", {**new, "input": message}, "input.messages.0.additional_kwargs.n"
    yield "POST", "/runs/wait", {**new, "input": {"a": [[number]]}}, "input.a.0.0"
    yield "POST", f"{at}/runs", {**new, "metadata": {"a": number}}, "metadata.a"
    yield "POST", f"{at}/runs", {**new, "context": {"mood": number}}, "context.mood"
    yield "POST", f"{at}/runs", {**new, "config": {"configurable": {"a": number}}}, "config.configurable.a"
    yield "POST", f"{at}/runs", {**new, "command": {"update": {"a": number}}}, "command.update.a"
    yield "POST", f"{at}/runs", {**new, "command": {"resume": number}}, "command.resume"
    yield "POST", f"{at}/state", {"values": message}, "values.messages.0.additional_kwargs.n"
    yield "POST", "/threads", {"metadata": {"a": number}}, "metadata.a"
    yield "PATCH", at, {"metadata": {"a": {"b": number}}}, "metadata.a.b"
    yield "POST", "/assistants", {"graph_id": "aware", "context": {"a": number}}, "context.a"
    yield "PUT", "/store/items", {"namespace": ["n"], "key": "k", "value": {"a": number}}, "value.a"
    params = {"assistant_id": "aware", "input": {"a": number}}
    yield "POST", f"{at}/commands", {"id": 1, "method": "run.start", "params": params}, "input.a"
    answer = {"interrupt_id": "x", "response": [number]}
    yield "POST", f"{at}/commands", {"id": 1, "method": "input.respond", "params": answer}, "response.0"


async def _asked(server: Served, number: int) -> None:
    http = await server.http()
    for method, path, body, place in places(number):
        answer = await http.request(method, path, json=body)
        if path.endswith("/commands"):
            assert answer.json()["error"] == "invalid_argument", (path, answer.text)
            told = answer.json()["message"]
        else:
            assert answer.status_code == 422, (method, path, answer.text)
            told = detail(answer)
        assert f"{place} is a whole number with more than 64 bits" in told, (method, path, told)
        assert str(number) not in told


@pytest.mark.parametrize("number", TOO_LONG, ids=["above", "below", "400 digits"])
@run
async def test_a_number_that_no_value_can_have_is_refused_with_its_place(near: str, number: int) -> None:
    async with serving(near) as server:
        client = await server.client()
        await client.threads.create(thread_id="t", graph_id="aware")
        await _asked(server, number)
        assert await client.runs.list("t") == []
        assert (await client.threads.get("t"))["metadata"] == {"graph_id": "aware"}
        assert await client.threads.count() == 1
        assert await client.store.get_item(["n"], key="k") is None


def _bodies_of(part: Any) -> Iterator[tuple[str, str, Any]]:
    """Bodies that would be stored, with a part of them that is not looked at otherwise."""
    new: dict[str, Any] = {"assistant_id": "aware", "input": said("x")}
    at, step = "/threads/t", {"values": {"messages": [part]}, "as_node": "answer"}
    for how in ("", "/wait", "/stream"):
        yield "POST", f"{at}/runs{how}", {**new, "input": {"messages": [part]}}
    yield "POST", "/runs/batch", [new, {**new, "input": {"messages": [part]}}]
    for name in ("metadata", "context"):
        yield "POST", f"{at}/runs", {**new, name: {"a": [part]}}
    yield "POST", f"{at}/runs", {**new, "config": {"configurable": {"a": [part]}}}
    for command in ({"resume": [part]}, {"update": {"a": [part]}}, {"goto": {"node": "n", "input": [part]}}):
        yield "POST", f"{at}/runs", {"assistant_id": "aware", "command": command}
    yield "POST", f"{at}/state", {"values": {"messages": [part]}}
    yield "POST", "/threads", {"thread_id": "n", "metadata": {"graph_id": "aware", "a": [part]}}
    yield "POST", "/threads", {"metadata": {"graph_id": "aware"}, "supersteps": [{"updates": [step]}]}
    yield "PATCH", at, {"metadata": {"a": [part]}}
    yield "POST", "/threads/search", {"values": {"a": [part]}}
    yield "POST", f"{at}/history", {"metadata": {"a": [part]}}
    yield "POST", f"{at}/signals/s", {"value": [part]}
    yield "POST", "/assistants", {"graph_id": "aware", "metadata": {"a": [part]}}
    yield "POST", "/runs/crons", {**new, "schedule": "0 0 1 1 *", "input": [part]}
    yield "PUT", "/store/items", {"namespace": ["n"], "key": "k", "value": {"a": [part]}}
    yield "POST", "/store/items/search", {"namespace_prefix": ["n"], "filter": {"a": [part]}}
    for method in ("run.start", "state.fork"):
        params = {**new, "input": [part], "checkpoint_id": "c"}
        yield "POST", f"{at}/commands", {"id": 1, "method": method, "params": params}
    params = {"interrupt_id": "x", "response": [part]}
    yield "POST", f"{at}/commands", {"id": 1, "method": "input.respond", "params": params}


@pytest.mark.parametrize(
    ("part", "fault"),
    [
        ("cut \ud83d", "half of a character"),
        ({"\ud83d": 1}, "half of a character"),
        (float("nan"), "not a finite number"),
    ],
    ids=["half a character", "half a character in a name", "NaN"],
)
@run
async def test_what_no_client_could_read_again_is_refused_on_every_route(
    near: str, part: Any, fault: str
) -> None:
    kind = {"Content-Type": "application/json"}
    async with serving(near) as server:
        http, client = await server.http(), await server.client()
        await client.threads.create(thread_id="t", graph_id="aware")
        for method, path, body in _bodies_of(part):
            answer = await http.request(method, path, content=json.dumps(body).encode(), headers=kind)
            is_command = path.endswith("/commands")
            refused = answer.json()["message"] if is_command else detail(answer)
            assert answer.status_code == (200 if is_command else 422), (method, path, answer.text)
            assert fault in refused, (method, path, answer.text)
        assert await client.runs.list("t") == []
        assert await client.threads.count() == 1
        assert await client.threads.get_history("t") == []
        assert await client.store.get_item(["n"], key="k") is None
        assert await client.crons.search() == []


@run
async def test_the_longest_numbers_come_back_as_they_were_sent(near: str) -> None:
    async with serving(near) as server:
        client = await server.client()
        thread_id = (await client.threads.create())["thread_id"]
        message = {"role": "user", "content": "x", "additional_kwargs": {"n": list(LONG)}}
        given: dict[str, Any] = {"messages": [message]}
        await client.runs.wait(thread_id, "aware", input=given, metadata={"n": LONG[0]})
        values = await state_values(client, thread_id)
        assert values["messages"][0]["additional_kwargs"]["n"] == list(LONG)
        await client.store.put_item(["n"], "k", {"n": list(LONG)})
        assert (await client.store.get_item(["n"], "k"))["value"] == {"n": list(LONG)}
        # What is larger is a number with a point, or text.
        await client.runs.wait(thread_id, "aware", input=said("y"), metadata={"n": 1e300, "m": str(2**64)})


def test_every_value_that_cannot_be_stored_is_refused_with_its_place() -> None:
    half = "holds half of a character"
    unfit: list[tuple[Any, str]] = [
        ({"input": {"text": "\ud800"}}, f"input.text {half}"),
        ({"input": [[1, "\udfff"]]}, f"input.0.1 {half}"),
        ({"a": {"b": {"\ud83d": 1}}}, f"a.b.� is a name that {half}"),
        ({"a": [float("nan")]}, "a.0 is not a finite number"),
        ({"a": {"b": 1e999}}, "a.b is not a finite number"),
        ({"a": -1e999}, "a is not a finite number"),
    ]
    for data, fault in unfit:
        with pytest.raises(ValueError, match=fault):
            check_values(data)
    with pytest.raises(ValidationError, match=r"input\.(0 is a whole number|1 holds half)"):
        NewRun.model_validate({"assistant_id": "a", "input": [2**64, "\ud800"]})


def test_what_can_be_stored_is_left_as_it_is() -> None:
    deep: Any = 1
    for _ in range(5000):
        deep = [deep]
    # The first number has the bytes with which MessagePack begins NaN.
    (like_nan,) = struct.unpack(">d", bytes.fromhex("4000cb7ff8000000"))
    fit = {"whole": "🙂", "numbers": [like_nan, 1.5, None, True]}
    for data in (deep, fit):
        assert check_values(data) is data


def nested(levels: int) -> Any:
    value: Any = 1
    for level in range(levels):
        value = {"a": value} if level % 2 else [value]
    return value


def deep_bodies(deep: Any) -> Iterator[tuple[str, str, Any]]:
    new: dict[str, Any] = {"assistant_id": "aware", "input": said("x")}
    yield "POST", "/threads", {"thread_id": "deep", "metadata": {"a": deep}}
    yield "PATCH", "/threads/t", {"metadata": {"a": deep}}
    yield "POST", "/threads/search", {"metadata": {"a": deep}}
    yield "POST", "/threads/t/state", {"values": {"a": deep}}
    yield "POST", "/threads/t/runs", {**new, "input": {"a": deep}}
    yield "POST", "/threads/t/runs", {**new, "metadata": {"a": deep}}
    yield "POST", "/threads/t/runs/wait", {**new, "config": {"configurable": {"a": deep}}}
    yield "POST", "/threads/t/runs/stream", {**new, "context": {"a": deep}}
    yield "POST", "/threads/t/runs", {"assistant_id": "aware", "command": {"resume": deep}}
    yield "POST", "/assistants", {"graph_id": "aware", "metadata": {"a": deep}}
    yield "POST", "/runs/crons", {**new, "schedule": "0 0 1 1 *", "metadata": {"a": deep}}
    yield "PUT", "/store/items", {"namespace": ["n"], "key": "k", "value": {"a": deep}}
    yield "POST", "/store/items/search", {"namespace_prefix": ["n"], "filter": {"a": deep}}
    start = {"id": 1, "method": "run.start", "params": {**new, "metadata": {"a": deep}}}
    yield "POST", "/threads/t/commands", start


@pytest.mark.parametrize("levels", [DEPTH, 150, 240, 300, 600])
@run
async def test_what_no_list_could_show_again_is_refused(near: str, levels: int) -> None:
    async with serving(near) as server:
        http = await server.http()
        await http.post("/threads", json={"thread_id": "t"})
        for method, path, body in deep_bodies(nested(levels)):
            answer = await http.request(method, path, json=body)
            refused = answer.json().get("message") if path.endswith("/commands") else detail(answer)
            assert f"nested deeper than {DEPTH} levels" in refused, (method, path, answer.text)
        for kind in ("threads", "assistants", "runs/crons"):
            assert (await http.post(f"/{kind}/search", json={})).status_code == 200, kind
        assert (await http.get("/threads/t/runs")).json() == []


@run
async def test_as_deep_as_permitted_a_value_comes_back(near: str) -> None:
    deep = nested(DEPTH - 2)
    async with serving(near) as server:
        http = await server.http()
        made = await http.post("/threads", json={"thread_id": "t", "metadata": {"a": deep}})
        assert made.json()["metadata"] == {"a": deep}
        found = await http.post("/threads/search", json={"metadata": {"a": deep}})
        assert [one["thread_id"] for one in found.json()] == ["t"]


@run
async def test_a_page_beyond_all_numbers_is_refused_as_such(near: str) -> None:
    async with serving(near) as server:
        http = await server.http()
        await http.post("/threads", json={"thread_id": "t"})
        for offset in (2**63 - 1, 10**30):
            answer = await http.get(f"/threads/t/runs?offset={offset}")
            assert answer.status_code == 422, answer.text
            assert detail(answer).startswith("offset: ")


@run
async def test_a_list_in_the_query_that_is_no_list_is_refused(near: str) -> None:
    async with serving(near) as server:
        client, http = await server.client(), await server.http()
        await client.threads.create(thread_id="t")
        await client.runs.wait("t", "aware", input=said("x"))
        for text in ("[", "[" * 20_000, "[1,", "[" + "9" * 5000 + "]"):
            answer = await http.get("/threads/t/runs", params={"select": text})
            assert answer.status_code == 422, (text[:9], answer.text)


@run
async def test_a_checkpoint_among_the_configurable_values_is_text_that_can_be_stored(near: str) -> None:
    async with serving(near) as server:
        client, http = await server.client(), await server.http()
        await client.threads.create(thread_id="t")
        for ref in ("\\ud800", "a\\ude00"):
            config = f'{{"configurable": {{"checkpoint_id": "{ref}"}}}}'
            body = f'{{"assistant_id": "aware", "input": {{}}, "config": {config}}}'
            kind = {"Content-Type": "application/json"}
            answer = await http.post("/threads/t/runs", content=body.encode(), headers=kind)
            assert answer.status_code == 422, answer.text
            assert "checkpoint_id" in detail(answer)
        assert await client.runs.list("t") == []


UNFIT_CONFIGS: dict[str, dict[str, Any]] = {
    "recursion_limit": {"recursion_limit": 0},
    "max_concurrency": {"max_concurrency": "a"},
    "tags": {"tags": [5]},
    "callbacks": {"callbacks": ["x"]},
}


@pytest.mark.parametrize("part", UNFIT_CONFIGS)
@run
async def test_a_config_with_which_no_run_could_begin_is_refused_before_it_is_stored(
    near: str, part: str
) -> None:
    async with serving(near) as server:
        http, client = await server.http(), await server.client()
        await client.threads.create(thread_id="t", graph_id="aware")
        assistant: Any = await client.assistants.create("aware")
        cron: Any = await client.crons.create("aware", schedule="0 0 1 1 *")
        config: dict[str, Any] = {"config": UNFIT_CONFIGS[part]}
        body: dict[str, Any] = {"assistant_id": "aware", "input": said("x"), **config}
        asked: list[tuple[str, str, Any]] = [
            *(("POST", f"/threads/t/runs{how}", body) for how in ("", "/wait", "/stream")),
            ("POST", "/runs/wait", body),
            ("POST", "/runs/batch", [{**body, "config": {}}, body]),
            ("POST", "/assistants", {"graph_id": "aware", **config}),
            ("PATCH", f"/assistants/{assistant['assistant_id']}", config),
            ("POST", "/runs/crons", {**body, "schedule": "0 0 1 1 *"}),
            ("POST", "/threads/t/runs/crons", {**body, "schedule": "0 0 1 1 *"}),
            ("PATCH", f"/runs/crons/{cron['cron_id']}", config),
        ]
        for method, path, sent in asked:
            answer = await http.request(method, path, json=sent)
            assert answer.status_code == 422, (path, answer.text)
            assert f"{part} of a config" in detail(answer)
        answer = await http.post("/threads/t/commands", json={"id": 1, "method": "run.start", "params": body})
        assert answer.json()["error"] == "invalid_argument", answer.text
        assert await client.runs.list("t") == []
        assert await client.threads.count() == 1
        assert (await client.assistants.get(assistant["assistant_id"]))["config"] == assistant["config"]
        crons: Any = await client.crons.search()
        assert [one["payload"] for one in crons] == [cron["payload"]]
