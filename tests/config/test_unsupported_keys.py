"""Of ``langgraph.json`` nothing is passed over that would have changed what the server does."""

from __future__ import annotations

import json
import os
import re
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from perdure.config.settings import SETTINGS
from perdure.config.sources import read_file
from perdure.config.unsupported_keys import IGNORED, REFUSED
from perdure.errors import BadSetting
from perdure.server.config import load
from perdure.server.hosting.startup import prepare

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"
OF_LANGGRAPH = """
    _INTERNAL_docker_tag api_version auth.cache.cache_keys auth.cache.max_size auth.cache.ttl_seconds
    auth.disable_studio_auth auth.openapi.paths auth.openapi.security auth.path base_image checkpointer.path
    checkpointer.serde.allowed_json_modules checkpointer.serde.allowed_msgpack_modules
    checkpointer.serde.pickle_fallback checkpointer.ttl.default_ttl checkpointer.ttl.strategy
    checkpointer.ttl.sweep_interval_minutes checkpointer.ttl.sweep_limit dependencies dockerfile_lines
    encryption.path env graphs http.app http.configurable_headers.excludes
    http.configurable_headers.includes http.cors.allow_credentials http.cors.allow_headers
    http.cors.allow_methods http.cors.allow_origin_regex http.cors.allow_origins http.cors.expose_headers
    http.cors.max_age http.disable_a2a http.disable_assistants http.disable_mcp http.disable_meta
    http.disable_runs http.disable_store http.disable_threads http.disable_ui http.disable_webhooks
    http.enable_custom_route_auth http.logging_headers.excludes http.logging_headers.includes
    http.middleware_order http.mount_prefix image_distro keep_pkg_tools node_version pip_config_file
    pip_installer priority.path python_version source.kind source.package source.root store.index.dims
    store.index.embed store.index.fields store.ttl.default_ttl store.ttl.refresh_on_read
    store.ttl.sweep_interval_minutes ui webhooks.env_prefix webhooks.headers webhooks.url.allowed_domains
    webhooks.url.allowed_ports webhooks.url.disable_loopback webhooks.url.max_url_length
    webhooks.url.require_https
"""
"""Every key that LangGraph's own command line knows, in its release 0.4.40."""


def written(folder: Path, held: dict[str, Any]) -> Path:
    file = folder / "langgraph.json"
    file.write_text(json.dumps(held))
    return file


def nested(key: str, value: Any) -> dict[str, Any]:
    for name in reversed(key.split(".")):
        value = {name: value}
    assert isinstance(value, dict)
    return value


@pytest.mark.parametrize("key", REFUSED)
def test_what_would_change_the_server_and_is_not_there_is_refused_by_name(tmp_path: Path, key: str) -> None:
    file = written(tmp_path, nested(key, {"path": "./own.py:own"}))
    with pytest.raises(BadSetting, match=re.escape(f"{key} in {file} cannot be followed: {REFUSED[key]}")):
        read_file(file)


@pytest.mark.parametrize("key", IGNORED)
def test_what_changes_nothing_is_passed_over(tmp_path: Path, key: str) -> None:
    layer = read_file(written(tmp_path, nested(key, "anything")))
    assert (layer.entries, layer.ignored) == ({}, ())


def test_every_key_of_langgraph_json_is_known() -> None:
    read = {key for key, setting in SETTINGS.items() if setting.langgraph}
    assert not read & (REFUSED.keys() | IGNORED.keys())
    known = read | REFUSED.keys() | IGNORED.keys() | {"encryption"}
    for key in OF_LANGGRAPH.split():
        assert any(key == each or key.startswith(f"{each}.") for each in known), f"nothing is done with {key}"


def test_the_documentation_lists_what_becomes_of_every_key() -> None:
    part = PAGE.read_text().partition("## From a `langgraph.json`")[2].partition("\n## ")[0]
    rows = [line.strip("|").split("|") for line in part.splitlines() if line.startswith("| `")]
    told = {row[0].strip(" `"): row[1].strip() for row in rows if len(row) == 2}
    read = {key: "read" for key, setting in SETTINGS.items() if setting.langgraph}
    refusals = {key: f"refused: {mend}" for key, mend in REFUSED.items()}
    passed_over = {key: f"ignored: {why}" for key, why in IGNORED.items()}
    assert told == {
        **read,
        **refusals,
        **passed_over,
        "encryption": "refused without keys: its own code is not called",
    }


def test_the_folders_among_the_dependencies_can_be_imported_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "bricks_and_mortar.py").write_text("SIZE = 3\n")
    written(
        tmp_path, {"graphs": {"a": "./a.py:a"}, "dependencies": [".", "./lib", "langchain_openai", "./none"]}
    )
    monkeypatch.chdir(tmp_path)
    config = load(file=None, environ={"DATABASE_URL": "memory://"})
    assert config.import_folders == (tmp_path.resolve(), (tmp_path / "lib").resolve())
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(os, "environ", {})
    before = list(sys.path)
    prepare(config)
    prepare(config)
    assert sys.path == [*before, *map(str, config.import_folders)]
    assert import_module("bricks_and_mortar").SIZE == 3


@pytest.mark.parametrize("wrong", [7, [7], {"lib": "./lib"}])
def test_dependencies_are_a_list_of_texts(
    tmp_path: Path, wrong: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path, {"graphs": {"a": "./a.py:a"}, "dependencies": wrong})
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadSetting, match="dependencies"):
        load(file=None, environ={"DATABASE_URL": "memory://"})
