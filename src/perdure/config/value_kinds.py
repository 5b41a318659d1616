"""Kinds of values of settings: how each is parsed from text, and which values are valid.

A check returns a value in the form in which it is used, or raises ``ValueError`` with advice. Its message
does not quote the value, as only the caller knows whether the value is a secret.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import fields
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from perdure.config.hosts import check_host_name, hosts
from perdure.config.webhook_secrets import key_of
from perdure.model.arguments import check_run_config
from perdure.model.limits import SharedLimit
from perdure.model.model_calls import Price
from perdure.model.retention_policy import Retention, parse_duration

_YES, _NO = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


class ValueKind(NamedTuple):
    """Kind of a value: a description of the valid values (``wants``), the parser of text from the environment
    (``read``), and the check of a parsed value (``check``)."""

    wants: str
    read: Callable[[str], Any]
    check: Callable[[Any], Any]


def _check_text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError
    return value


def _check_place(value: Any) -> str:
    before, colon, after = _check_text(value).rpartition(":")
    if not colon or not before or not after:
        raise ValueError
    return str(value)


def _check_flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError
    return value


def _parse_flag(text: str) -> bool:
    if text.lower() not in (*_YES, *_NO):
        raise ValueError
    return text.lower() in _YES


def is_no(text: str) -> bool:
    """Return True if a text means no."""
    return text.strip().lower() in _NO


def _check_table(value: Any) -> dict[Any, Any]:
    if not isinstance(value, dict):
        raise ValueError
    return value


def _check_words(value: Any) -> tuple[str, ...]:
    """Return a list of texts; a single text counts as a list, as in some keys of LangGraph's files."""
    words = [value] if isinstance(value, str) else value
    if not isinstance(words, list | tuple):
        raise ValueError
    return tuple(_check_text(word) for word in words)


def _parse_words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def number(value: Any, least: float = 0.0, *, more: bool = False) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError
    if value < least or (more and value <= least):
        raise ValueError
    return float(value)


def _require_at_most(value: float, most: float) -> float:
    if value > most:
        raise ValueError
    return value


def whole(least: int, most: int | None = None) -> ValueKind:
    span = f"of at least {least}" if most is None else f"from {least} to {most}"

    def check(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ValueError
        if most is not None and value > most:
            raise ValueError
        return value

    return ValueKind(f"a whole number {span}", int, check)


def one_of(*names: str) -> ValueKind:
    def check(value: Any) -> str:
        if value not in names:
            raise ValueError
        return str(value)

    return ValueKind(" or ".join(repr(name) for name in names), str, check)


def _check_origins(value: Any) -> tuple[str, ...]:
    for origin in (origins := _check_words(value)):
        parts = urlsplit(origin)
        is_origin = parts.scheme and parts.netloc and origin == f"{parts.scheme}://{parts.netloc}"
        if origin != "*" and not is_origin:
            raise ValueError
    return origins


def _check_host_names(value: Any) -> tuple[str, ...]:
    return tuple("*" if word == "*" else check_host_name(word) for word in _check_words(value))


def _check_pattern(value: Any) -> str:
    try:
        re.compile(_check_text(value))
    except re.error as error:
        raise ValueError(f"it is not a regular expression: {error}") from None
    return str(value)


def _check_prefix(value: Any) -> str:
    if not re.fullmatch(r"(/[A-Za-z0-9._~-]+)+", _check_text(value)):
        raise ValueError
    return str(value)


def _check_https(value: Any) -> str:
    parts = urlsplit(_check_text(value))
    is_local = parts.hostname in ("localhost", "127.0.0.1", "::1")
    if not parts.hostname or parts.scheme not in (("https", "http") if is_local else ("https",)):
        raise ValueError
    return str(value)


def _check_hosts(value: Any) -> tuple[str, ...]:
    return hosts(_check_words(value))


def _check_secrets(value: Any) -> tuple[str, ...]:
    secrets = _check_words(value)
    for secret in secrets:
        key_of(secret)
    return secrets


def _check_graphs(value: Any) -> dict[str, tuple[str, str | None]]:
    if not isinstance(value, dict) or not value:
        raise ValueError
    return {graph_name(name): _check_graph(name, graph) for name, graph in value.items()}


def graph_name(name: Any) -> str:
    if not _check_text(name) == name.strip():
        raise ValueError(f"the name {name!r} must not begin or end with a space")
    return str(name)


def _check_graph(name: str, graph: Any) -> tuple[str, str | None]:
    if not isinstance(graph, dict):
        graph = {"path": graph}
    place, description = graph.get("path"), graph.get("description")
    if unknown := set(graph) - {"path", "description"}:
        raise ValueError(f"{name} has {min(unknown)!r}; a graph has path and description")
    if description is not None and not isinstance(description, str):
        raise ValueError(f"the description of {name} has to be text")
    try:
        return _check_place(place), description
    except ValueError:
        raise ValueError(f"{name} is {place!r}; it has to be {PLACE.wants}") from None


def _parse_graphs(text: str) -> dict[str, str]:
    from perdure.runtime.agents.loading import parse_places

    return parse_places(_parse_words(text))


def _check_headers(value: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the patterns of names to include and of names to exclude, in lower case."""
    if not isinstance(value, dict):
        raise ValueError
    if unknown := set(value) - {"includes", "include", "excludes", "exclude"}:
        raise ValueError(f"it has {min(unknown)!r}; only includes and excludes are allowed")
    return _check_patterns(value, "include"), _check_patterns(value, "exclude")


def _check_patterns(value: dict[str, Any], name: str) -> tuple[str, ...]:
    return tuple(each.lower() for each in _check_words(value.get(f"{name}s") or value.get(name) or ()))


def _check_configs(value: Any) -> dict[str, dict[str, Any]]:
    for name, config in _check_table(value).items():
        if not isinstance(config, dict):
            raise ValueError(f'{name} has to be a config, e.g. {{"configurable": {{"model": "small"}}}}')
        try:
            check_run_config(config)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
    return dict(value)


def _check_env(value: Any) -> str | dict[str, str]:
    if isinstance(value, dict) and all(isinstance(text, str) and name for name, text in value.items()):
        return dict(value)
    return _check_text(value)


def _check_duration(value: Any) -> str | float:
    parse_duration(value)
    if isinstance(value, str):
        return value
    return float(value)


def _check_policies(value: Any) -> dict[str, Retention]:
    out: dict[str, Retention] = {}
    for name, table in _check_table(value).items():
        if not isinstance(table, dict):
            raise ValueError(f"the policy {name!r} has to be a table, e.g. {{ keep_last = 50 }}")
        try:
            out[graph_name(name)] = Retention.of(table)
        except ValueError as error:
            raise ValueError(f"the policy {name!r}: {error}") from None
    return out


def _check_prices(value: Any) -> dict[str, Price]:
    return {_check_text(name): _check_price(name, table) for name, table in _check_table(value).items()}


def _check_price(name: str, table: Any) -> Price:
    names = [each.name for each in fields(Price)]
    if not isinstance(table, dict) or not {"input", "output"} <= table.keys() <= set(names):
        raise ValueError(
            f"{name} has to be a table with input and output, and optionally {' and '.join(names[2:])}"
        )
    try:
        return Price(**{key: number(price) for key, price in table.items()})
    except ValueError:
        raise ValueError(
            f"the prices of {name} have to be numbers of at least 0, per million tokens"
        ) from None


def _check_limits(value: Any) -> dict[str, SharedLimit]:
    out: dict[str, SharedLimit] = {}
    for name, table in _check_table(value).items():
        if not isinstance(table, dict):
            raise ValueError(f"the limit {name!r} has to be a table, e.g. {{ rate = 600 }}")
        if unknown := sorted(set(table) - {field.name for field in fields(SharedLimit)}):
            raise ValueError(f"the limit {name!r} has {unknown[0]!r}, which is not a field of a limit")
        try:
            out[_check_text(name)] = SharedLimit(**table)
        except ValueError as error:
            raise ValueError(f"the limit {name!r}: {error}") from None
    return out


def _check_names(value: Any) -> dict[str, str]:
    return {_check_text(name): _check_text(policy) for name, policy in _check_table(value).items()}


def _check_schemas(value: Any) -> str | dict[str, str]:
    if not isinstance(value, dict):
        return _check_place(value)
    return {graph_name(name): _check_place(place) for name, place in value.items()}


TEXT = ValueKind("text", str, _check_text)
PLACE = ValueKind("a place, e.g. './agent.py:graph' or 'package.module:graph'", str, _check_place)
FLAG = ValueKind("true or false", _parse_flag, _check_flag)
WORDS = ValueKind("a list of texts", _parse_words, _check_words)
AMOUNT = ValueKind("a number of at least 0", float, number)
SPAN = ValueKind("a number greater than 0", float, lambda value: number(value, more=True))
WEIGHT = ValueKind("a number from 0 to 1", float, lambda value: _require_at_most(number(value), 1.0))
ORIGINS = ValueKind(
    "a list of origins without a path, e.g. 'https://chat.example.com', or '*'", _parse_words, _check_origins
)
PATTERN = ValueKind("a regular expression", str, _check_pattern)
PREFIX = ValueKind("a path without a slash at its end, e.g. '/api'", str, _check_prefix)
KEYS_URL = ValueKind("an https:// URL", str, _check_https)
HOSTS = ValueKind(
    "a list of hosts and networks, e.g. 'hooks.internal' or '10.1.0.0/16'", _parse_words, _check_hosts
)
HOST_NAMES = ValueKind(
    "a list of host names, e.g. 'agents.internal', or '*'", _parse_words, _check_host_names
)
SECRETS = ValueKind(
    "a list of texts, each whsec_ and 24 to 64 random bytes in base64", _parse_words, _check_secrets
)
GRAPHS = ValueKind(f"a table of names, each with {PLACE.wants}", _parse_graphs, _check_graphs)
HEADERS = ValueKind(
    "a table with lists of names, includes and excludes, e.g. 'x-org-*'", json.loads, _check_headers
)
CONFIGS = ValueKind("a table of graph names, each with its assistant's config", json.loads, _check_configs)
DURATION = ValueKind("a duration, e.g. '12h', '30d' or seconds above 0", str, _check_duration)
POLICIES = ValueKind(
    "a table of names, each with the fields of a retention policy", json.loads, _check_policies
)
PRICES = ValueKind(
    "a table of model names, each with prices per million tokens, e.g. { input = 2.5, output = 10 }",
    json.loads,
    _check_prices,
)
LIMITS = ValueKind(
    "a table of names, each with the fields of a limit, e.g. { rate = 600, concurrency = 4 }",
    json.loads,
    _check_limits,
)
NAMES = ValueKind("a table of names, each with a policy's name", json.loads, _check_names)
SHARE = ValueKind(
    "a number above 0 and at most 1", float, lambda value: _require_at_most(number(value, more=True), 1.0)
)
SCHEMAS = ValueKind(
    "a place, e.g. './agent.py:schema', or a table of graph names and places", str, _check_schemas
)
ENV = ValueKind("the path of a .env file, or a table of names and texts", str, _check_env)
