"""Commands of runs over HTTP: null is an answer, nothing is refused, and failed runs are run again."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from tests.runtime.graphs import Storage
from tests.server.lifecycle_worlds import THREAD, World, world


def in_world(test: Any, *args: Any) -> None:
    async def main() -> None:
        async with world(Storage("memory", ""), "flat", "keep") as place:
            await test(place, *args)

    made: Coroutine[Any, Any, None] = main()
    asyncio.run(asyncio.wait_for(made, 60))


async def started(place: World, **body: Any) -> Any:
    sent = {"assistant_id": "agent", "if_not_exists": "create", **body}
    return await place.http.post(f"/threads/{THREAD}/runs", json=sent)


async def _nothing(place: World, command: dict[str, Any]) -> None:
    assert (await started(place, input={"log": ["ask"]})).status_code == 200
    await place.work()
    refused = await started(place, command=command)
    assert refused.status_code == 422, refused.text
    assert (await place.shown())["thread"] == ["send?"]


@pytest.mark.parametrize(
    "command", [{}, {"update": {}}, {"goto": []}, {"update": None}, {"goto": None, "update": []}], ids=str
)
def test_a_command_that_holds_nothing_is_refused(command: dict[str, Any]) -> None:
    in_world(_nothing, command)


UNFIT: tuple[dict[str, Any], ...] = (
    {"update": 5},
    {"update": "log"},
    {"update": ["log"]},
    {"update": [["log"]]},
    {"update": [["log", ["x"]], [1, 2]]},
    {"goto": 5},
    {"goto": True},
    {"goto": False},
    {"goto": {"input": {}}},
    {"goto": {"node": 1}},
    {"goto": [None]},
    {"goto": ["node", ["node"]]},
    {"goto": [""]},
)


@pytest.mark.parametrize("command", UNFIT, ids=str)
@pytest.mark.parametrize("beside", [{}, {"resume": "yes"}], ids=["alone", "beside an answer"])
def test_a_command_that_no_graph_can_apply_is_refused(
    command: dict[str, Any], beside: dict[str, Any]
) -> None:
    in_world(_nothing, {**command, **beside})


async def _pairs(place: World) -> None:
    await started(place, input={"log": ["ask"]})
    await place.work()
    update = [["log", ["approved by ada"]], ["log", ["ask"]]]
    assert (await started(place, command={"resume": "yes", "update": update})).status_code == 200
    await place.work()
    shown = await place.shown()
    assert (shown["log"], shown["state"]) == (["ask", "approved by ada", "ask"], ["pay?"])
    assert (await started(place, command={"update": [["log", ["more"]]]})).status_code == 200
    await place.work()
    assert (await place.shown())["log"][3] == "more"


def test_the_pairs_of_an_update_are_applied_with_the_answer_and_alone() -> None:
    in_world(_pairs)


async def _unknown_node(place: World, goto: Any) -> None:
    await started(place, input={"log": ["ask"]})
    await place.work()
    assert (await started(place, command={"resume": "yes", "goto": goto})).status_code == 200
    await place.work()
    shown = await place.shown()
    assert (shown["log"], shown["status"], shown["thread"]) == (["ask"], "error", ["send?"])
    thread = (await place.http.get(f"/threads/{THREAD}")).json()
    assert "goes to 'nowhere'; the graph has the nodes node" in thread["error"]["message"]
    assert (await started(place, command={"resume": "yes"})).status_code == 200
    await place.work()
    assert (await place.shown())["state"] == ["pay?"]
    steps = [{"updates": [{"command": {"goto": goto}, "as_node": "node"}]}]
    body = {"thread_id": "new", "metadata": {"graph_id": "agent"}, "supersteps": steps}
    refused = await place.http.post("/threads", json=body)
    assert refused.status_code == 400, refused.text
    assert "goes to 'nowhere'" in refused.json()["detail"]
    assert (await place.http.get("/threads/new")).status_code == 404


@pytest.mark.parametrize("goto", ["nowhere", ["node", "nowhere"], {"node": "nowhere", "input": {}}], ids=str)
def test_a_goto_to_an_unknown_node_fails_its_run_and_leaves_the_question_open(goto: Any) -> None:
    in_world(_unknown_node, goto)


async def _superstep(place: World, command: dict[str, Any], log: list[str]) -> None:
    steps: list[dict[str, Any]] = [
        {"updates": [{"values": {"log": ["in"]}, "as_node": "__start__"}]},
        {"updates": [{"command": command, "as_node": "node"}]},
    ]
    body = {"thread_id": THREAD, "metadata": {"graph_id": "agent"}, "supersteps": steps}
    made = await place.http.post("/threads", json=body)
    assert made.status_code == 200, made.text
    state = (await place.http.get(f"/threads/{THREAD}/state")).json()
    assert (state["values"]["log"], state["next"]) == (log, ["node"] if command.get("goto") else [])
    assert (await started(place)).status_code == 200
    await place.work()
    if command.get("goto"):
        assert (await place.shown())["log"] == [*log, "echo"]


@pytest.mark.parametrize(
    ("command", "log"),
    [
        ({"goto": {"node": "node", "input": {"log": ["hi"]}}}, ["in"]),
        ({"goto": "node", "resume": None}, ["in"]),
        ({"update": [["log", ["p"]]], "goto": ["node"]}, ["in", "p"]),
        ({"update": {"log": ["d"]}}, ["in", "d"]),
    ],
    ids=str,
)
def test_the_command_of_a_superstep_is_applied(command: dict[str, Any], log: list[str]) -> None:
    in_world(_superstep, command, log)


async def _unfit_superstep(place: World, update: dict[str, Any]) -> None:
    body = {
        "thread_id": THREAD,
        "metadata": {"graph_id": "agent"},
        "supersteps": [{"updates": [{**update, "as_node": "node"}]}],
    }
    refused = await place.http.post("/threads", json=body)
    assert refused.status_code == 422, refused.text
    assert (await place.http.get(f"/threads/{THREAD}")).status_code == 404


@pytest.mark.parametrize(
    "update",
    [
        *({"command": command} for command in UNFIT),
        {"command": {"update": {"log": ["x"]}, "resume": "yes"}},
        {"command": {"update": {"log": ["x"]}}, "values": {"log": ["y"]}},
    ],
    ids=str,
)
def test_a_superstep_that_would_lose_a_part_of_its_command_creates_no_thread(update: dict[str, Any]) -> None:
    in_world(_unfit_superstep, update)


async def _null(place: World) -> None:
    await started(place, input={"log": ["ask"]})
    await place.work()
    for _ in range(2):
        assert (await started(place, command={"resume": None})).status_code == 200
        await place.work()
    shown = await place.shown()
    assert (shown["log"], shown["status"]) == (["ask", "None None"], "idle")
    assert (await started(place, command={"resume": None})).status_code == 409


def test_null_is_an_answer() -> None:
    in_world(_null)


async def _leaving(place: World) -> None:
    await started(place, input={"log": ["ask"]})
    await place.work()
    assert (await started(place, command={"goto": "node"})).status_code == 409
    assert (await place.shown())["state"] == ["send?"]
    assert (await started(place, command={"goto": "__end__"})).status_code == 200
    await place.work()
    assert (await place.shown())["state"] == []


def test_a_goto_beside_an_open_question_is_a_conflict() -> None:
    in_world(_leaving)


async def _again(place: World) -> None:
    run = (await started(place, input={"log": ["boom"]})).json()["run_id"]
    await place.work()
    assert (await place.shown())["status"] == "error"
    again = await place.http.post(f"/threads/{THREAD}/runs/{run}/retry")
    assert again.status_code == 200, again.text
    assert again.json()["retry_of"] == run
    assert again.json()["status"] == "pending"
    same = await place.http.post(f"/threads/{THREAD}/runs/{run}/retry")
    assert same.json()["run_id"] == again.json()["run_id"]
    await place.work()
    many = (await place.http.post("/runs/retry", json={"status": "error"})).json()
    assert [(one["retry_of"], one["error"]) for one in many] == [(again.json()["run_id"], None)]
    await place.work()
    listed = (await place.http.get(f"/threads/{THREAD}/runs")).json()
    assert [one["status"] for one in listed] == ["error"] * 3
    none = await place.http.post("/runs/retry", json={"thread_id": THREAD, "run_ids": ["none"]})
    assert none.json()[0]["error"]["error"] == "NotFound"
    assert (await place.http.post(f"/threads/{THREAD}/runs/none/retry")).status_code == 404
    assert (await place.http.post("/runs/retry", json={})).status_code == 422


def test_failed_runs_are_run_again() -> None:
    in_world(_again)


async def _ambiguous(place: World) -> None:
    run = (await started(place, input={"log": ["hi"]})).json()["run_id"]
    bodies: tuple[dict[str, Any], ...] = (
        {"thread_id": THREAD},
        {"run_ids": [run]},
        {"run_ids": [run], "status": "all"},
        {"run_ids": [run], "status": "error"},
        {"thread_id": THREAD, "run_ids": [run], "status": "all"},
        {"thread_id": THREAD, "run_ids": [run], "status": "error"},
    )
    for path in ("/runs/cancel", "/runs/retry"):
        for body in bodies:
            refused = await place.http.post(path, json=body)
            assert refused.status_code == 422, (path, body, refused.text)
    assert (await place.http.post("/runs/cancel", json={"thread_id": THREAD, "run_ids": []})).is_success
    for status in ("", "done"):
        refused = await place.http.get(f"/threads/{THREAD}/runs", params={"status": status})
        assert refused.status_code == 422, refused.text
        assert "'success'" in refused.json()["detail"]
    for strategy in ("", "newest"):
        refused = await place.http.post("/threads/prune", json={"thread_ids": [THREAD], "strategy": strategy})
        assert refused.status_code == 422, refused.text
        assert "'keep_latest'" in refused.json()["detail"]
    listed = (await place.http.get(f"/threads/{THREAD}/runs")).json()
    assert [(one["run_id"], one["status"]) for one in listed] == [(run, "pending")]


def test_a_request_that_may_mean_more_than_it_names_changes_nothing() -> None:
    in_world(_ambiguous)
