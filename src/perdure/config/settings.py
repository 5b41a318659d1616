"""Settings of servers and workers: keys, variables, flags, defaults and valid values.

A check returns a value in the form in which it is used, or raises ``ValueError`` with advice. It never
repeats the value, as only the caller knows whether it is a secret. ``docs/configuration.md`` explains the
settings; a test compares it with this list.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from types import NoneType
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints
from urllib.parse import urlsplit

from perdure.config.hosts import hosts
from perdure.config.webhook_secrets import key_of
from perdure.model.retention_policy import Retention, duration_us
from perdure.runtime.settings import Settings

EXPOSED = ("Content-Location", "Location", "X-Pagination-Total", "X-Pagination-Next", "X-Request-Id")
"""Response headers that the SDK reads; a browser passes them on only if the server exposes them."""
LOOPBACK_ORIGIN = r"https?://(localhost|127\.0\.0\.1|\[::1\])(:\d+)?"

_YES, _NO = ("1", "true", "yes", "on"), ("0", "false", "no", "off")
_PAGE = 1000
_PORT_MAX = 65535
_DAY_S = 86400


class ValueKind(NamedTuple):
    """Kind of a value: a description, the parser for text of the environment, and the check."""

    wants: str
    read: Callable[[str], Any]
    check: Callable[[Any], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Setting with its ``key`` as in ``perdure.toml``, with dots. ``langgraph`` is True if ``langgraph.json``
    has it under the same name; ``derived`` describes a default that depends on other settings."""

    key: str
    kind: ValueKind
    variables: tuple[str, ...]
    default: Any = None
    derived: str = ""
    flag: str = ""
    langgraph: bool = False
    secret: bool = False
    is_place: bool = False


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError
    return value


def _place(value: Any) -> str:
    before, colon, after = _text(value).rpartition(":")
    if not colon or not before or not after:
        raise ValueError
    return str(value)


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError
    return value


def _flag_of(text: str) -> bool:
    if text.lower() not in (*_YES, *_NO):
        raise ValueError
    return text.lower() in _YES


def _words(value: Any) -> tuple[str, ...]:
    """Return a list of texts; a single text counts as a list, as in some keys of LangGraph's files."""
    given = [value] if isinstance(value, str) else value
    if not isinstance(given, list | tuple):
        raise ValueError
    return tuple(_text(word) for word in given)


def _words_of(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _number(value: Any, least: float = 0.0, *, more: bool = False) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError
    if value < least or (more and value <= least):
        raise ValueError
    return float(value)


def _at_most(value: float, most: float) -> float:
    if value > most:
        raise ValueError
    return value


def _whole(least: int, most: int | None = None) -> ValueKind:
    def check(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ValueError
        if most is not None and value > most:
            raise ValueError
        return value

    span = f"from {least} on" if most is None else f"from {least} to {most}"
    return ValueKind(f"a whole number {span}", int, check)


def _one_of(*names: str) -> ValueKind:
    def check(value: Any) -> str:
        if value not in names:
            raise ValueError
        return str(value)

    return ValueKind(" or ".join(repr(name) for name in names), str, check)


def _origins(value: Any) -> tuple[str, ...]:
    for origin in (found := _words(value)):
        parts = urlsplit(origin)
        is_origin = parts.scheme and parts.netloc and origin == f"{parts.scheme}://{parts.netloc}"
        if origin != "*" and not is_origin:
            raise ValueError
    return found


def _pattern(value: Any) -> str:
    try:
        re.compile(_text(value))
    except re.error as error:
        raise ValueError(f"it is no regular expression: {error}") from None
    return str(value)


def _prefix(value: Any) -> str:
    if not re.fullmatch(r"(/[A-Za-z0-9._~-]+)+", _text(value)):
        raise ValueError
    return str(value)


def _https(value: Any) -> str:
    parts = urlsplit(_text(value))
    is_near = parts.hostname in ("localhost", "127.0.0.1", "::1")
    if not parts.hostname or parts.scheme not in (("https", "http") if is_near else ("https",)):
        raise ValueError
    return str(value)


def _hosts(value: Any) -> tuple[str, ...]:
    return hosts(_words(value))


def _secrets(value: Any) -> tuple[str, ...]:
    secrets = _words(value)
    for secret in secrets:
        key_of(secret)
    return secrets


def _graphs(value: Any) -> dict[str, tuple[str, str | None]]:
    if not isinstance(value, dict) or not value:
        raise ValueError
    return {_named(name): _graph(name, graph) for name, graph in value.items()}


def _named(name: Any) -> str:
    if not _text(name) == name.strip():
        raise ValueError(f"the name {name!r} has to be without blanks around it")
    return str(name)


def _graph(name: str, graph: Any) -> tuple[str, str | None]:
    place, description = (
        (graph.get("path"), graph.get("description")) if isinstance(graph, dict) else (graph, None)
    )
    if isinstance(graph, dict) and (unknown := set(graph) - {"path", "description"}):
        raise ValueError(f"{name} has {min(unknown)!r}; a graph has path and description")
    if description is not None and not isinstance(description, str):
        raise ValueError(f"the description of {name} has to be text")
    try:
        return _place(place), description
    except ValueError:
        raise ValueError(f"{name} has to be {PLACE.wants}") from None


def _graphs_of(text: str) -> dict[str, str]:
    from perdure.runtime.loading import named

    return named(_words_of(text))


def _headers(value: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the patterns of names to include and of names to exclude, in lower case."""
    if not isinstance(value, dict):
        raise ValueError
    if unknown := set(value) - {"includes", "include", "excludes", "exclude"}:
        raise ValueError(f"it has {min(unknown)!r}; there is includes and excludes")
    return _patterns(value, "include"), _patterns(value, "exclude")


def _patterns(value: dict[str, Any], name: str) -> tuple[str, ...]:
    return tuple(each.lower() for each in _words(value.get(f"{name}s") or value.get(name) or ()))


def _configs(value: Any) -> dict[str, dict[str, Any]]:
    if not isinstance(value, dict):
        raise ValueError
    for name, config in value.items():
        if not isinstance(config, dict) or not isinstance(config.get("configurable") or {}, dict):
            raise ValueError(f'{name} has to be a config, e.g. {{"configurable": {{"model": "small"}}}}')
    return dict(value)


def _env(value: Any) -> str | dict[str, str]:
    if isinstance(value, dict) and all(isinstance(held, str) and name for name, held in value.items()):
        return dict(value)
    return _text(value)


def _duration(value: Any) -> str | float:
    duration_us(value)
    return value if isinstance(value, str) else float(value)


def _policies(value: Any) -> dict[str, Retention]:
    if not isinstance(value, dict):
        raise ValueError
    out: dict[str, Retention] = {}
    for name, table in value.items():
        if not isinstance(table, dict):
            raise ValueError(f"the policy {name!r} has to be a table, e.g. {{ keep_last = 50 }}")
        try:
            out[_named(name)] = Retention.of(table)
        except ValueError as error:
            raise ValueError(f"the policy {name!r}: {error}") from None
    return out


def _names(value: Any) -> dict[str, str]:
    if not isinstance(value, dict):
        raise ValueError
    return {_text(name): _text(held) for name, held in value.items()}


def _schemas(value: Any) -> str | dict[str, str]:
    if not isinstance(value, dict):
        return _place(value)
    return {_named(name): _place(place) for name, place in value.items()}


def _conversations(value: Any) -> dict[str, Any]:
    """Return the policies by graph: ``False`` for none, or a table whose fields are checked like the
    settings of their names."""
    if not isinstance(value, dict):
        raise ValueError
    return {_named(graph): _policy(graph, table) for graph, table in value.items()}


def _policy(graph: str, table: Any) -> Any:
    if table is False:
        return table
    if not isinstance(table, dict) or not table:
        raise ValueError(f"{graph} has to be a table, e.g. {{ limit = 8000 }}, or false for no policy")
    out: dict[str, Any] = {}
    for name, held in table.items():
        setting = SETTINGS.get(f"conversation.{name}")
        if setting is None or name == "graphs":
            raise ValueError(f"{graph} has {name!r}, which is no setting of conversation")
        try:
            out[name] = setting.kind.check(held)
        except ValueError:
            raise ValueError(f"{graph}.{name} has to be {setting.kind.wants}") from None
    return out


TEXT = ValueKind("text", str, _text)
PLACE = ValueKind("a place, e.g. './agent.py:graph' or 'package.module:graph'", str, _place)
FLAG = ValueKind("true or false", _flag_of, _flag)
WORDS = ValueKind("a list of texts", _words_of, _words)
AMOUNT = ValueKind("a number from 0 on", float, _number)
SPAN = ValueKind("a number greater than 0", float, lambda value: _number(value, more=True))
WEIGHT = ValueKind("a number from 0 to 1", float, lambda value: _at_most(_number(value), 1.0))
ORIGINS = ValueKind(
    "a list of origins without a path, e.g. 'https://chat.example.com', or '*'", _words_of, _origins
)
PATTERN = ValueKind("a regular expression", str, _pattern)
PREFIX = ValueKind("a path without a slash at its end, e.g. '/api'", str, _prefix)
KEYS_URL = ValueKind("an https:// URL", str, _https)
HOSTS = ValueKind("a list of hosts and networks, e.g. 'hooks.internal' or '10.1.0.0/16'", _words_of, _hosts)
SECRETS = ValueKind("a list of texts, each whsec_ and 24 to 64 random bytes in base64", _words_of, _secrets)
GRAPHS = ValueKind(f"a table of names, each with {PLACE.wants}", _graphs_of, _graphs)
HEADERS = ValueKind(
    "a table with lists of names, includes and excludes, e.g. 'x-org-*'", json.loads, _headers
)
CONFIGS = ValueKind("a table of graphs' names, each with its assistant's config", json.loads, _configs)
DURATION = ValueKind("a duration, e.g. '12h', '30d' or seconds above 0", str, _duration)
POLICIES = ValueKind("a table of names, each with the fields of a retention policy", json.loads, _policies)
NAMES = ValueKind("a table of names, each with a policy's name", json.loads, _names)
SHARE = ValueKind(
    "a number above 0 and at most 1", float, lambda value: _at_most(_number(value, more=True), 1.0)
)
SCHEMAS = ValueKind(
    "a place, e.g. './agent.py:schema', or a table of graphs' names and places", str, _schemas
)
CONVERSATIONS = ValueKind(
    "a table of graphs' names, each with a table such as { limit = 8000 }, or false",
    json.loads,
    _conversations,
)
ENV = ValueKind("the path of a .env file, or a table of names and texts", str, _env)


def _setting(key: str, kind: ValueKind, default: Any = None, **more: Any) -> Setting:
    variables = more.pop("variables", (f"PERDURE_{key.upper().replace('.', '_')}",))
    return Setting(key=key, kind=kind, default=default, variables=variables, **more)


def _runtime() -> list[Setting]:
    """Return the settings of ``perdure.runtime.Settings``, which checks their ranges itself."""
    hints = get_type_hints(Settings)
    return [
        _setting(f"runtime.{field.name}", _kind_of(hints[field.name]), field.default)
        for field in fields(Settings)
    ]


def _kind_of(hint: Any) -> ValueKind:
    if get_origin(hint) is Literal:
        return _one_of(*get_args(hint))
    (bare,) = {*(get_args(hint) or (hint,))} - {NoneType}
    number = ValueKind("a number", float, lambda value: _number(value, -math.inf))
    return {float: number, int: _whole(0), bool: FLAG, str: TEXT}[bare]


_DISABLED = ("assistants", "threads", "runs", "store", "meta", "webhooks")


def _chat(provider: str, in_doubt: tuple[str, ...], *own: tuple[str, bool]) -> list[Setting]:
    """Return the settings of a chat channel: its own, each with whether it is secret, then those that all
    channels share."""
    key = f"channels.{provider}"
    return [
        *(_setting(f"{key}.{name}", TEXT, secret=secret) for name, secret in own),
        _setting(f"{key}.graph", TEXT, derived="the only graph"),
        _setting(f"{key}.tenant", TEXT),
        _setting(f"{key}.debounce", AMOUNT, 2.0),
        _setting(f"{key}.max_wait", AMOUNT, 10.0),
        _setting(f"{key}.groups", _one_of("mention", "all", "none"), "mention"),
        _setting(f"{key}.edits", _one_of("accept", "ignore"), "accept"),
        _setting(f"{key}.allowed", WORDS, ()),
        _setting(f"{key}.in_doubt", _one_of(*in_doubt), in_doubt[0]),
    ]


_LISTED = [
    _setting(
        "database_url",
        TEXT,
        variables=("PERDURE_DB", "DATABASE_URL"),
        flag="--db",
        derived="`sqlite:///.perdure/dev.db` in development, else none",
        secret=True,
    ),
    _setting("graphs", GRAPHS, flag="[NAME=]PLACE…", langgraph=True),
    _setting("assistants", CONFIGS, variables=("LANGGRAPH_CONFIG",)),
    _setting("schema", SCHEMAS, langgraph=True),
    _setting("env", ENV, variables=(), langgraph=True, secret=True),
    _setting("dependencies", WORDS, (), variables=(), langgraph=True),
    _setting("development", FLAG, False, variables=("PERDURE_DEVELOPMENT", "LANGGRAPH_DEV"), flag="--dev"),
    _setting("auth.path", PLACE, langgraph=True, is_place=True),
    _setting("auth.tenant_claims", WORDS, derived="`sub` with `auth.jwt`, else none"),
    _setting("auth.jwt.issuer", WORDS),
    _setting("auth.jwt.audience", WORDS),
    _setting("auth.jwt.algorithms", WORDS, derived="`HS256` with a secret, else `RS256`"),
    _setting("auth.jwt.secret", TEXT, secret=True),
    _setting("auth.jwt.jwks_url", KEYS_URL),
    _setting("auth.jwt.public_key", TEXT, secret=True),
    _setting("auth.jwt.leeway", AMOUNT, 30.0),
    _setting("auth.jwt.required", WORDS, ()),
    _setting("auth.jwt.identity_claim", TEXT, "sub"),
    _setting("auth.jwt.header", TEXT, "authorization"),
    _setting("auth.jwt.jwks_timeout", SPAN, 5.0),
    _setting("http.host", TEXT, "127.0.0.1", flag="--host"),
    _setting("http.port", _whole(0, _PORT_MAX), 2024, flag="--port"),
    _setting("http.app", PLACE, langgraph=True, is_place=True),
    _setting("http.mount_prefix", PREFIX, langgraph=True),
    _setting("http.configurable_headers", HEADERS, langgraph=True),
    _setting(
        "http.middleware_order",
        _one_of("middleware_first"),
        "middleware_first",
        langgraph=True,
    ),
    _setting("http.enable_custom_route_auth", FLAG, False, langgraph=True),
    *(_setting(f"http.disable_{name}", FLAG, False, langgraph=True) for name in _DISABLED),
    _setting("http.webhook_hosts", HOSTS, ()),
    _setting("http.webhook_secrets", SECRETS, (), secret=True),
    _setting("http.page", FLAG, False, flag="--page", derived="`true` in development, else `false`"),
    _setting("http.inspector", FLAG, False, derived="`true` in development, else `false`"),
    _setting("http.cors.allow_origins", ORIGINS, (), langgraph=True),
    _setting(
        "http.cors.allow_origin_regex",
        PATTERN,
        langgraph=True,
        derived="this machine's own origins in development, else none",
    ),
    _setting("http.cors.allow_methods", WORDS, ("*",), langgraph=True),
    _setting("http.cors.allow_headers", WORDS, ("*",), langgraph=True),
    _setting("http.cors.allow_credentials", FLAG, False, langgraph=True),
    _setting("http.cors.expose_headers", WORDS, EXPOSED, langgraph=True),
    _setting("http.cors.max_age", _whole(0, _DAY_S), 600, langgraph=True),
    _setting("limits.body_bytes", _whole(1), 4 * 1024 * 1024),
    _setting("limits.requests_per_minute", _whole(1)),
    _setting("limits.streams", _whole(1)),
    _setting("limits.page_max", _whole(1), _PAGE),
    _setting("conversation.limit", _whole(1), langgraph=True),
    _setting(
        "conversation.summary", _whole(1), langgraph=True, derived="an eighth of the limit with `summarize`"
    ),
    _setting("conversation.keep", SHARE, 0.5, langgraph=True),
    _setting("conversation.summarize", TEXT, langgraph=True),
    _setting("conversation.counter", PLACE, langgraph=True),
    _setting("conversation.system", TEXT, langgraph=True),
    _setting("conversation.key", TEXT, "messages", langgraph=True),
    _setting("conversation.graphs", CONVERSATIONS, langgraph=True),
    _setting("memory.enabled", FLAG, False, langgraph=True),
    _setting(
        "memory.extract",
        FLAG,
        False,
        langgraph=True,
        variables=("PERDURE_MEMORY_EXTRACT", "ENABLE_FACT_EXTRACTION"),
    ),
    _setting(
        "memory.model", TEXT, langgraph=True, variables=("PERDURE_MEMORY_MODEL", "FACT_EXTRACTION_MODEL")
    ),
    _setting("memory.user", TEXT, langgraph=True),
    _setting("memory.nearest", _whole(0), 5, langgraph=True),
    _setting("memory.newest", _whole(0), 5, langgraph=True),
    _setting("memory.tokens", _whole(1), 1000, langgraph=True),
    _setting("memory.debounce", AMOUNT, 10.0, langgraph=True),
    _setting("memory.max_wait", AMOUNT, 120.0, langgraph=True),
    _setting("store.database_url", TEXT, derived="the database of the threads", secret=True),
    _setting("store.type", _one_of("memory", "redis", "postgres"), variables=("LANGGRAPH_STORE_TYPE",)),
    _setting("store.redis_url", TEXT, variables=("LANGGRAPH_STORE_REDIS_URL", "REDIS_URL"), secret=True),
    _setting(
        "store.postgres_dsn", TEXT, variables=("LANGGRAPH_STORE_POSTGRES_DSN", "POSTGRES_DSN"), secret=True
    ),
    _setting("store.index.dims", _whole(1), langgraph=True),
    _setting("store.index.embed", PLACE, langgraph=True, is_place=True),
    _setting("store.index.fields", WORDS, ("$",), langgraph=True),
    _setting("store.index.name", TEXT, derived="that of the embedding model"),
    _setting("store.index.text", FLAG, False),
    _setting("store.index.language", TEXT, derived="`english`"),
    _setting("store.index.vector_weight", WEIGHT, derived="0.3"),
    _setting(
        "store.ttl.default_ttl",
        SPAN,
        langgraph=True,
        variables=("PERDURE_STORE_TTL_DEFAULT_TTL", "LANGGRAPH_STORE_TTL_MINUTES"),
    ),
    _setting("store.ttl.refresh_on_read", FLAG, True, langgraph=True),
    _setting("store.ttl.sweep_interval_minutes", SPAN, langgraph=True),
    _setting("checkpointer.ttl.strategy", _one_of("delete", "keep_latest"), "delete", langgraph=True),
    _setting("checkpointer.ttl.default_ttl", SPAN, langgraph=True),
    _setting("checkpointer.ttl.sweep_interval_minutes", SPAN, 5.0, langgraph=True),
    _setting("checkpointer.ttl.sweep_limit", _whole(1), 1000, langgraph=True),
    _setting("retention.keep_last", _whole(1)),
    _setting("retention.keep_for", DURATION),
    _setting("retention.idle", DURATION),
    _setting("retention.keep_tagged", FLAG, True),
    _setting("retention.policies", POLICIES),
    _setting("retention.assistants", NAMES),
    _setting("retention.every", DURATION, "1h"),
    _setting("retention.share", SHARE, 0.05),
    *_runtime(),
    *_chat("telegram", ("resend", "hold"), ("token", True), ("secret", True), ("api_url", False)),
    *_chat(
        "slack",
        ("reconcile", "resend", "hold"),
        ("token", True),
        ("signing_secret", True),
        ("api_url", False),
    ),
    *_chat(
        "whatsapp",
        ("resend", "hold"),
        ("phone_id", False),
        ("token", True),
        ("app_secret", True),
        ("verify_token", True),
        ("api_url", False),
    ),
    _setting("metrics.host", TEXT, "127.0.0.1", flag="--metrics-host"),
    _setting("metrics.port", _whole(0, _PORT_MAX), flag="--metrics-port"),
]

SETTINGS = {setting.key: setting for setting in _LISTED}
"""All settings by key, in the order of the documentation."""
