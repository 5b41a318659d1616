"""Where the chat page's files are, and where not."""

from __future__ import annotations

import httpx
import pytest

from perdure.server.app import create_app
from perdure.server.config import Http
from perdure.server.routes.chat import PAGE
from tests.server.hosting import run


def client_of(root_path: str = "", **http: bool) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(create_app(None, Http(**http)), root_path=root_path)  # type: ignore[arg-type]
    return httpx.AsyncClient(transport=transport, base_url="http://test")


@run
async def test_a_server_has_no_page_unless_it_is_asked_for() -> None:
    async with client_of() as client:
        for path in ("/chat", "/chat/", "/chat/about.json"):
            assert (await client.get(path)).status_code == 404


@run
async def test_the_page_may_load_nothing_that_is_not_its_own() -> None:
    async with client_of(page=True) as client:
        page = await client.get("/chat", follow_redirects=True)
        assert (page.status_code, page.url.path) == (200, "/chat/")
        policy = page.headers["content-security-policy"].split("; ")
        assert "default-src 'none'" in policy
        assert not any("unsafe" in part or "*" in part for part in policy)
        assert (await client.get("/chat/about.json")).json() == {
            "inspector": False,
            "process": False,
            "page_max": 1000,
            "body_max": 4 * 1024 * 1024,
        }
        again = await client.get("/chat/page.js", headers={"if-none-match": "x"})
        assert again.status_code == 200
        same = await client.get("/chat/page.js", headers={"if-none-match": again.headers["etag"]})
        assert same.status_code == 304


@run
async def test_the_page_is_behind_the_prefix_of_all_routes() -> None:
    async with client_of("/agents", page=True) as client:
        assert (await client.get("/agents/chat/")).status_code == 200
        assert (await client.get("/agents/chat/page.js")).status_code == 200


@pytest.mark.parametrize("path", ["/chat/../app.py", "/chat/%2e%2e/app.py", "/chat/..%2fapp.py"])
def test_nothing_beside_the_page_is_served(path: str) -> None:
    @run
    async def ask() -> None:
        async with client_of(page=True) as client:
            assert (await client.get(path)).status_code == 404

    ask()


def test_every_file_of_the_page_is_named_by_another() -> None:
    paths = [path for path in PAGE.rglob("*") if path.is_file() and path.name != "LICENSES.txt"]
    texts = {path.relative_to(PAGE).as_posix(): path.read_text(encoding="utf-8") for path in paths}
    for name in texts.keys() - {"index.html"}:
        assert any(f'{name}"' in text for other, text in texts.items() if other != name), name


def test_each_library_of_the_page_has_its_licence() -> None:
    licences = (PAGE / "vendor" / "LICENSES.txt").read_text(encoding="utf-8")
    for library in (PAGE / "vendor").glob("*.js"):
        assert f"{library.name}: " in licences
    assert licences.count("Permission is hereby granted") + licences.count("Redistribution and use") == 2
