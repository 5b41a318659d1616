"""Tags over HTTP: anchors that survive a sweep, and can be removed again."""

from __future__ import annotations

from urllib.parse import quote

from perdure import Retention, RetentionRules
from perdure.retention.sweeper import RetentionOptions
from tests.server.acceptance.saying import row
from tests.server.hosting import run, serving


@run
async def test_a_tagged_checkpoint_survives_a_sweep(near: str) -> None:
    async with serving(near) as server:
        client, http = await server.client(), await server.http()
        thread_id = (await client.threads.create(graph_id="remembers"))["thread_id"]
        for number in range(3):
            text = {"messages": [{"role": "user", "content": str(number), "id": str(number)}]}
            await client.threads.update_state(thread_id, text, as_node="recall")
        path = f"/threads/{thread_id}/tags"
        oldest = (await client.threads.get_history(thread_id))[-1]["checkpoint"]["checkpoint_id"]
        assert (await http.get(path)).json() == []
        put = await http.put(f"{path}/approved", json={"checkpoint_id": oldest})
        assert (put.status_code, put.json()) == (
            200,
            {"name": "approved", "checkpoint_ns": "", "checkpoint_id": oldest},
        )
        latest = (await http.put(f"{path}/now", json={})).json()["checkpoint_id"]
        assert [tag["name"] for tag in (await http.get(path)).json()] == ["approved", "now"]
        rules = RetentionRules(Retention(keep_last=1))
        options = RetentionOptions(share=1.0, rules=rules, all_tenants=True)
        await server.host.runtime.database.apply_retention(options)
        left = [state["checkpoint"]["checkpoint_id"] for state in await client.threads.get_history(thread_id)]
        assert left == [latest, oldest]
        tagged = row(await client.threads.get_state(thread_id, checkpoint_id=oldest))
        assert tagged["values"]["messages"]
        assert (await http.delete(f"{path}/approved")).status_code == 204
        await server.host.runtime.database.apply_retention(options)
        assert len(await client.threads.get_history(thread_id)) == 1


@run
async def test_what_does_not_exist_is_not_found(near: str) -> None:
    async with serving(near) as server:
        client, http = await server.client(), await server.http()
        thread_id = (await client.threads.create(graph_id="remembers"))["thread_id"]
        path = f"/threads/{thread_id}/tags"
        assert (await http.put(f"{path}/a", json={})).status_code == 404
        await client.threads.update_state(thread_id, {"messages": []}, as_node="recall")
        for answer in (
            await http.put(f"{path}/a", json={"checkpoint_id": "none"}),
            await http.delete(f"{path}/a"),
            await http.get(f"/threads/{'0' * 8}-0000-4000-8000-{'0' * 12}/tags"),
        ):
            assert answer.status_code == 404, answer.text
        assert (await http.put(f"{path}/a", json={"checkpoint_id": 7})).status_code == 422


@run
async def test_a_tag_s_name_has_any_character(near: str) -> None:
    async with serving(near) as server:
        client, http = await server.client(), await server.http()
        thread_id = (await client.threads.create(graph_id="remembers"))["thread_id"]
        await client.threads.update_state(thread_id, {"messages": []}, as_node="recall")
        path = f"/threads/{thread_id}/tags"
        name = "é/ 1%?" + "ü" * 250
        at = f"{path}/{quote(name, safe='')}"
        assert (await http.put(at, json={})).json()["name"] == name
        assert [tag["name"] for tag in (await http.get(path)).json()] == [name]
        assert (await http.delete(at)).status_code == 204
        assert (await http.get(path)).json() == []
        for wrong in ("%FF", "a" * 257):
            assert (await http.put(f"{path}/{wrong}", json={})).status_code == 422
