"""The JSON API of the inspector over databases that real graphs filled.

Covers perdure.inspector.states, perdure.inspector.timeline.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import shutil
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

import httpx
import pytest

import perdure
from perdure.database.base import handle_of
from perdure.database.opening import open_for_reading
from perdure.engine.threads.measure import Measure
from perdure.errors import Contention, NotAllowed, PerdureError, Unavailable
from perdure.inspector import diff, listing
from perdure.inspector.access import LocalAccess
from perdure.inspector.web import create_app
from perdure.model.program import Program
from tests.inspector import staging
from tests.inspector.applying import apply
from tests.inspector.staging import HOSTILE, HOSTILE_ID

BASE = "http://127.0.0.1:8770"


class Site:
    """The inspector's application over an open database, in this process."""

    def __init__(self, url: str, tenant: str = "") -> None:
        self.database = open_for_reading(url, tenant=tenant)
        self.app = create_app(LocalAccess(handle_of(self.database), tenant, url=url))

    def get(self, view: str, **asked: Any) -> Any:
        response = self.response(f"/inspect/api/{view}", params=asked)
        assert response.status_code == 200, response.text
        return response.json()

    def response(self, path: str, method: str = "GET", **how: Any) -> httpx.Response:
        async def send() -> httpx.Response:
            transport = httpx.ASGITransport(app=self.app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url=BASE) as client:
                return await client.request(method, path, **how)

        return asyncio.run(send())


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("inspector") / "threads.db"
    with perdure.connect_sync(f"sqlite:///{path}", migrate=True) as database:
        staging.fill(database)
    with perdure.connect_sync(f"sqlite:///{path}", tenant="other") as database:
        staging.say(staging.compiled(database), "hidden", "secret")
    return path


@pytest.fixture
def site(filled: Path) -> Iterator[Site]:
    made = Site(f"sqlite:///{filled}")
    yield made
    made.database.close()


def test_threads_are_listed_by_activity_and_searched(site: Site) -> None:
    names = [each["thread_id"] for each in site.get("threads")["threads"]]
    assert names == [HOSTILE_ID, "answered", "waiting", "plain"]
    assert [each["thread_id"] for each in site.get("threads", sort="age")["threads"]] == names[::-1]
    assert [each["thread_id"] for each in site.get("threads", id="pl")["threads"]] == ["plain"]
    assert [each["thread_id"] for each in site.get("threads", id="a/b?")["threads"]] == [HOSTILE_ID]
    for asked in ({"sort": "id"}, {"sort": "id", "id": "a"}, {"id": "a"}):
        named = [HOSTILE_ID, "answered"] if "id" in asked else sorted(names)
        assert [each["thread_id"] for each in site.get("threads", **asked)["threads"]] == named
    assert [each["thread_id"] for each in site.get("threads", status="interrupted")["threads"]] == ["waiting"]
    assert site.get("threads", metadata='{"owner": "nobody else"}')["threads"] == []


def test_the_largest_of_the_matching_threads_come_first(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def ordered(**asked: str) -> tuple[list[str], int]:
        """The threads of all pages by size, and the number of pages."""
        pages = [site.get("threads", sort="size", **asked)]
        while (cursor := pages[-1]["cursor"]) is not None:
            pages.append(site.get("threads", sort="size", cursor=cursor, **asked))
        assert sum(page["examined"] for page in pages) == (1 if "id" in asked else 4)
        found = [each for page in pages for each in page["threads"]]
        sizes = {each["thread_id"]: each["bytes"] for each in found}
        assert sum(page["bytes"] for page in pages) == sum(sizes.values())
        for name, size in sizes.items():
            assert size == site.database.measure(name).total
        return sorted(sizes, key=lambda name: -sizes[name]), len(pages)

    whole = [each["thread_id"] for each in site.get("threads", sort="size")["threads"]]
    assert whole[0] == "plain"
    assert ordered() == (whole, 1)
    monkeypatch.setattr(listing, "_SECONDS", -1.0)
    assert ordered() == (whole, 5)
    assert ordered(status="interrupted")[0] == ["waiting"]
    assert ordered(id="pl")[0] == ["plain"]


@pytest.mark.parametrize(("error", "status"), [(Unavailable, 503), (Contention, 200)])
def test_a_database_that_is_away_is_no_thread_without_a_size(
    site: Site, monkeypatch: pytest.MonkeyPatch, error: type[PerdureError], status: int
) -> None:
    def fail(*_: object) -> Program[Measure]:
        raise error("no answer")
        yield

    monkeypatch.setattr(listing, "measure", fail)
    response = site.response("/inspect/api/threads", params={"sort": "size"})
    assert response.status_code == status
    if status == HTTPStatus.OK:
        assert [each["bytes"] for each in response.json()["threads"]] == [None] * 4


@pytest.mark.parametrize(
    ("view", "asked", "status"),
    [
        ("threads", {"status": "asleep"}, 422),
        ("threads", {"sort": "colour"}, 422),
        ("threads", {"sort": "activity", "id": "p"}, 422),
        ("threads", {"sort": "age", "id": "p"}, 422),
        ("threads", {"metadata": "[1]"}, 422),
        ("threads", {"cursor": "-1"}, 422),
        ("threads", {"cursor": "1" * 5000}, 422),
        ("threads", {"id": "p", "cursor": "plain"}, 422),
        ("threads", {"metadata": "[" * 10_000}, 422),
        ("scan", {"what": "retention", "keep_last": "1" * 5000}, 422),
        ("scan", {"what": "retention", "keep_last": "0"}, 422),
        ("thread", {}, 422),
        ("thread", {"id": "none"}, 404),
        ("thread", {"id": "hidden"}, 404),
        ("timeline", {"id": "hidden"}, 404),
        ("branches", {"id": "hidden"}, 404),
        ("checkpoint", {"id": "hidden"}, 404),
        ("channel", {"id": "hidden", "channel": "messages"}, 404),
        ("diff", {"id": "hidden"}, 404),
        ("timeline", {"id": "plain", "before": "x"}, 422),
        ("timeline", {"id": "plain", "before": "1" * 5000}, 422),
        ("checkpoint", {"id": "plain", "checkpoint": "none"}, 404),
        ("channel", {"id": "plain", "channel": "none"}, 404),
        ("branches", {"id": "plain", "namespace": "none"}, 404),
        ("unheard-of", {}, 404),
    ],
)
def test_what_cannot_be_shown_is_refused(site: Site, view: str, asked: dict[str, str], status: int) -> None:
    response = site.response(f"/inspect/api/{view}", params=asked)
    assert response.status_code == status
    assert isinstance(response.json()["detail"], str)


def test_a_body_that_is_nested_too_deeply_is_refused(site: Site) -> None:
    how = {"content": '{"id":' + "[" * 100_000, "headers": {"content-type": "application/json"}}
    assert site.response("/inspect/api/actions/delete", "POST", **how).status_code == 422


def test_a_timeline_has_the_writes_by_task(site: Site) -> None:
    page = site.get("timeline", id="waiting")
    newest = page["checkpoints"][0]
    assert [task["asked"] for task in newest["tasks"]] == [True]
    assert not any(task["answered"] for task in newest["tasks"])
    answered = site.get("timeline", id="answered")["checkpoints"]
    assert any(task["asked"] and task["answered"] for each in answered for task in each["tasks"])
    plain = site.get("timeline", id="plain")["checkpoints"]
    assert [each["tags"] for each in plain if each["tags"]] == [["approved"]]
    parallel = [each for each in plain if len(each["tasks"]) == 2]
    assert parallel
    assert all("notes" in task["channels"] for each in parallel for task in each["tasks"])


def test_branches_hold_each_checkpoint_once(site: Site) -> None:
    tree = site.get("branches", id="plain")
    page = site.get("timeline", id="plain")
    assert sum(each["count"] for each in tree["branches"]) == tree["total"] == len(page["checkpoints"])
    assert [each["has_head"] for each in tree["branches"]].count(True) == 1
    (first,) = [each for each in tree["branches"] if each["depth"] == 0]
    assert [each["forked_from"] for each in tree["branches"] if each["depth"]] == [first["last"]] * 2
    assert [each["tags"] for each in tree["branches"] if each["tags"]] == [["approved"]]


def test_each_difference_applied_to_the_parent_gives_the_child(site: Site) -> None:
    def state(checkpoint: str) -> dict[str, Any]:
        channels = site.get("checkpoint", id="plain", checkpoint=checkpoint)["channels"]
        return {
            each["name"]: [item["value"] for item in each["items"]] if "items" in each else each["value"]
            for each in channels
        }

    compared = 0
    for each in site.get("timeline", id="plain")["checkpoints"]:
        if each["parent_id"] is None:
            continue
        found = site.get("diff", id="plain", after=each["checkpoint_id"])
        assert found["before"] == each["parent_id"]
        after = state(each["checkpoint_id"])
        assert diff.changes(apply(state(each["parent_id"]), found["channels"]), after) == {}
        compared += 1
    assert compared > 10
    by_tag = site.get("diff", id="plain", before="approved")
    assert by_tag["before"] == site.get("thread", id="plain")["tags"][0]["checkpoint_id"]


def test_an_edit_of_a_message_is_one_change(site: Site) -> None:
    kinds = [
        site.get("diff", id="plain", after=each["checkpoint_id"])["channels"]
        .get("messages", {})
        .get("counts")
        for each in site.get("timeline", id="plain")["checkpoints"]
        if each["source"] == "update"
    ]
    assert {"removed": 0, "added": 0, "edited": 1, "moved": 0} in kinds
    assert {"removed": 1, "added": 0, "edited": 0, "moved": 0} in kinds


def test_items_of_a_long_list_come_in_parts(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/long.db"
    with perdure.connect_sync(url, migrate=True) as database:
        app = staging.compiled(database)
        app.update_state(staging.at("long"), {"notes": [f"note {n}" for n in range(100)]}, as_node="plan")
        app.update_state(staging.at("long"), {"facts": {"big": "x" * 100_000}}, as_node="plan")
    site = Site(url)
    channels = {each["name"]: each for each in site.get("checkpoint", id="long")["channels"]}
    assert (channels["notes"]["start"], channels["notes"]["total"]) == (60, 100)
    found = [item["value"] for item in channels["notes"]["items"]]
    start = 60
    while start:
        page = site.get("channel", id="long", channel="notes", before=start)
        found = [item["value"] for item in page["items"]] + found
        start = page["start"]
    assert found == [f"note {n}" for n in range(100)]
    facts = channels["facts"]
    assert facts["bytes"] > 100_000
    assert len(facts["beginning"]) == 65536
    assert "value" not in facts
    assert facts["bytes"] > site.get("checkpoint", id="long")["alert_bytes"]
    site.database.close()


def test_hostile_texts_stay_data(site: Site) -> None:
    response = site.response("/inspect/api/checkpoint", params={"id": HOSTILE_ID})
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-content-type-options"] == "nosniff"
    assert json.dumps(HOSTILE) in response.text
    page = site.response("/inspect/")
    assert page.headers["content-security-policy"].startswith("default-src 'none'; script-src 'self';")


def test_other_pages_and_host_names_are_refused(site: Site) -> None:
    assert site.response("/inspect/api/threads", headers={"host": "rebound.example"}).status_code == 403
    foreign = {"origin": "http://elsewhere.example"}
    assert site.response("/inspect/api/threads", "POST", headers=foreign).status_code == 403


def test_a_copy_is_read_without_changing_a_byte(filled: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy" / "threads.db"
    copy.parent.mkdir()
    shutil.copyfile(filled, copy)
    copy.chmod(0o444)
    copy.parent.chmod(0o555)
    before = hashlib.sha256(copy.read_bytes()).hexdigest()
    site = Site(f"sqlite:///{copy}")
    assert site.get("checkpoint", id="plain")["channels"]
    assert len(site.get("threads")["threads"]) == 4
    with pytest.raises(NotAllowed, match="reading only"):
        site.database.tag("plain", "changed")
    site.database.close()
    assert hashlib.sha256(copy.read_bytes()).hexdigest() == before
    copy.parent.chmod(0o755)
