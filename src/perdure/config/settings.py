"""Settings of servers and workers: keys, variables, flags, defaults and kinds of values.

``docs/configuration.md`` explains the settings; a test compares it with this list.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, fields
from types import NoneType
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin, get_type_hints

from perdure.config.value_kinds import (
    AMOUNT,
    CONFIGS,
    DURATION,
    ENV,
    FLAG,
    GRAPHS,
    HEADERS,
    HOST_NAMES,
    HOSTS,
    KEYS_URL,
    LIMITS,
    NAMES,
    ORIGINS,
    PATTERN,
    PLACE,
    POLICIES,
    PREFIX,
    PRICES,
    SCHEMAS,
    SECRETS,
    SHARE,
    SPAN,
    TEXT,
    WEIGHT,
    WORDS,
    ValueKind,
    graph_name,
    number,
    one_of,
    whole,
)
from perdure.errors import PerdureError
from perdure.model.retention_policy import parse_duration
from perdure.runtime.settings import Settings

if TYPE_CHECKING:
    from perdure.runtime.nodes.waiting import Question

EXPOSED = ("Content-Location", "Location", "X-Pagination-Total", "X-Pagination-Next", "X-Request-Id")
"""Response headers that the SDK reads; a browser passes them on only if the server exposes them."""
LOOPBACK_ORIGIN = r"https?://(localhost|127\.0\.0\.1|\[::1\])(:\d+)?"
_PAGE = 1000
_PORT_MAX = 65535
_DAY_S = 86400


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A setting.

    Attributes:
        key: its path in ``perdure.toml``, with dots.
        langgraph: True if ``langgraph.json`` has it under the same name.
        derived: description of a default that depends on other settings.
        set_means_on: variables that switch a flag on with any text that does not mean no.
    """

    key: str
    kind: ValueKind
    variables: tuple[str, ...]
    default: Any = None
    derived: str = ""
    flag: str = ""
    langgraph: bool = False
    secret: bool = False
    is_place: bool = False
    set_means_on: tuple[str, ...] = ()


def _check_conversations(value: Any) -> dict[str, Any]:
    """Return the policies by graph: ``False`` for no policy, or a table whose entries are checked like the
    settings of the same names."""
    if not isinstance(value, dict):
        raise ValueError
    return {graph_name(graph): _check_policy(graph, table) for graph, table in value.items()}


def _check_policy(graph: str, table: Any) -> Any:
    if table is False:
        return table
    if not isinstance(table, dict) or not table:
        raise ValueError(f"{graph} has to be a table, e.g. {{ limit = 8000 }}, or false for no policy")
    out: dict[str, Any] = {}
    for name, entry in table.items():
        setting = SETTINGS.get(f"conversation.{name}")
        if setting is None or name == "graphs":
            raise ValueError(f"{graph} has {name!r}, which is not a setting of conversation")
        try:
            out[name] = setting.kind.check(entry)
        except ValueError:
            raise ValueError(f"{graph}.{name} has to be {setting.kind.wants}") from None
    return out


CONVERSATIONS = ValueKind(
    "a table of graph names, each with a table such as { limit = 8000 }, or false",
    json.loads,
    _check_conversations,
)


_RULE = ("graph", "node", "tool", "within", "default", "remind")


def _check_questions(value: Any) -> tuple[tuple[str | None, Question], ...]:
    """Return the rules for questions, each with its graph, ``None`` for all graphs."""
    if not isinstance(value, list | tuple):
        raise ValueError
    return tuple(_parse_question_rule(number, table) for number, table in enumerate(value, 1))


def _parse_question_rule(number: int, table: Any) -> tuple[str | None, Question]:
    # Imported here: it imports LangGraph, which the commands that read a setting do not need.
    from perdure.runtime.nodes.waiting import Question

    names = ", ".join(_RULE)
    if not isinstance(table, dict):
        raise ValueError(f"rule {number} is not a table; a rule has {names}")
    if unknown := sorted(table.keys() - set(_RULE)):
        raise ValueError(f"rule {number} has {unknown[0]!r}; a rule has {names}")
    rule = dict(table)
    for name in ("graph", "node", "tool"):
        if not isinstance(rule.get(name, ""), str):
            raise ValueError(f"{name} of rule {number} has to be text")
    graph = rule.pop("graph", None)
    try:
        if "within" in rule:
            rule["within"] = _parse_seconds(rule["within"])
        if isinstance(remind := rule.get("remind"), list | tuple):
            rule["remind"] = [_parse_seconds(each) for each in remind]
        elif remind is not None:
            rule["remind"] = _parse_seconds(remind)
        return None if graph is None else graph_name(graph), Question(**rule)
    except (ValueError, PerdureError) as error:
        raise ValueError(f"rule {number}: {error}") from None


def _parse_seconds(value: Any) -> float:
    """Return a duration in seconds, from a number of seconds or a text such as ``7d``."""
    if isinstance(value, str):
        return parse_duration(value) / 1_000_000
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError("a duration has to be a number of seconds, or text such as 90m, 12h or 7d")
    return float(value)


QUESTIONS = ValueKind(
    'a list of rules, such as [{ tool = "send_mail", within = "1d", default = "reject" }]',
    json.loads,
    _check_questions,
)


def _declare_setting(key: str, kind: ValueKind, default: Any = None, **more: Any) -> Setting:
    variables = more.pop("variables", (f"PERDURE_{key.upper().replace('.', '_')}",))
    return Setting(key=key, kind=kind, default=default, variables=variables, **more)


def _list_runtime_settings() -> list[Setting]:
    """Return the settings that are fields of ``perdure.runtime.Settings``, which checks their ranges
    itself."""
    hints = get_type_hints(Settings)
    return [
        _declare_setting(
            f"runtime.{field.name}",
            _find_kind(hints[field.name]),
            _find_default(field),
            langgraph=field.name == "limits",
        )
        for field in fields(Settings)
        if field.name != "prices"
    ]


RUNTIME_DEFAULTS = {"shared_threads": True}
"""Defaults of servers and workers that differ from those of a runtime in a program. Clients of LangGraph's
server may run another graph on a thread."""


def _find_default(field: Field[Any]) -> Any:
    if field.default_factory is not MISSING:
        return field.default_factory()
    return RUNTIME_DEFAULTS.get(field.name, field.default)


def _find_kind(hint: Any) -> ValueKind:
    if get_origin(hint) is Literal:
        return one_of(*get_args(hint))
    if get_origin(hint) is Mapping:
        return LIMITS
    (bare,) = {*(get_args(hint) or (hint,))} - {NoneType}
    any_number = ValueKind("a number", float, lambda value: number(value, -math.inf))
    return {float: any_number, int: whole(0), bool: FLAG, str: TEXT}[bare]


_DISABLED = ("assistants", "threads", "runs", "store", "meta", "webhooks", "a2a", "mcp")


def _declare_chat_settings(
    provider: str, in_doubt: tuple[str, ...], *own: tuple[str, bool], flags: tuple[str, ...] = ()
) -> list[Setting]:
    """Return the settings of a chat channel.

    Args:
        provider: The name of the channel.
        in_doubt: The values of ``in_doubt``, the default first.
        own: The names of the channel's own settings, each with whether it is secret.
        flags: The names of the channel's own flags.
    """
    key = f"channels.{provider}"
    return [
        *(_declare_setting(f"{key}.{name}", TEXT, secret=secret) for name, secret in own),
        *(_declare_setting(f"{key}.{name}", FLAG, False) for name in flags),
        _declare_setting(f"{key}.graph", TEXT, derived="the only graph"),
        _declare_setting(f"{key}.tenant", TEXT),
        _declare_setting(f"{key}.debounce", AMOUNT, 2.0),
        _declare_setting(f"{key}.max_wait", AMOUNT, 10.0),
        _declare_setting(f"{key}.groups", one_of("mention", "all", "none"), "mention"),
        _declare_setting(f"{key}.edits", one_of("accept", "ignore"), "accept"),
        _declare_setting(f"{key}.allowed", WORDS, ()),
        _declare_setting(f"{key}.in_doubt", one_of(*in_doubt), in_doubt[0]),
    ]


_LISTED = [
    _declare_setting(
        "database_url",
        TEXT,
        variables=("PERDURE_DB", "DATABASE_URL"),
        flag="--db",
        derived="`sqlite:///.perdure/dev.db` in development, else none",
        secret=True,
    ),
    _declare_setting("keys", TEXT, flag="--keys", secret=True),
    _declare_setting("graphs", GRAPHS, flag="[NAME=]PLACE…", langgraph=True),
    _declare_setting("assistants", CONFIGS, variables=("LANGGRAPH_CONFIG",)),
    _declare_setting("schema", SCHEMAS, langgraph=True),
    _declare_setting("env", ENV, variables=(), langgraph=True, secret=True),
    _declare_setting("dependencies", WORDS, (), variables=(), langgraph=True),
    _declare_setting(
        "development",
        FLAG,
        False,
        variables=("PERDURE_DEVELOPMENT", "LANGGRAPH_DEV"),
        set_means_on=("LANGGRAPH_DEV",),
        flag="--dev",
    ),
    _declare_setting("auth.path", PLACE, langgraph=True, is_place=True),
    _declare_setting("auth.tenant_claims", WORDS, derived="`sub` with `auth.jwt`, else none"),
    _declare_setting("auth.jwt.issuer", WORDS),
    _declare_setting("auth.jwt.audience", WORDS),
    _declare_setting("auth.jwt.algorithms", WORDS, derived="`HS256` with a secret, else `RS256`"),
    _declare_setting("auth.jwt.secret", TEXT, secret=True),
    _declare_setting("auth.jwt.jwks_url", KEYS_URL),
    _declare_setting("auth.jwt.public_key", TEXT, secret=True),
    _declare_setting("auth.jwt.leeway", AMOUNT, 30.0),
    _declare_setting("auth.jwt.required", WORDS, ()),
    _declare_setting("auth.jwt.identity_claim", TEXT, "sub"),
    _declare_setting("auth.jwt.header", TEXT, "authorization"),
    _declare_setting("auth.jwt.jwks_timeout", SPAN, 5.0),
    _declare_setting("http.host", TEXT, "127.0.0.1", flag="--host"),
    _declare_setting("http.port", whole(0, _PORT_MAX), 2024, flag="--port"),
    _declare_setting("http.hosts", HOST_NAMES, ()),
    _declare_setting("http.app", PLACE, langgraph=True, is_place=True),
    _declare_setting("http.mount_prefix", PREFIX, langgraph=True),
    _declare_setting("http.configurable_headers", HEADERS, langgraph=True),
    _declare_setting(
        "http.middleware_order",
        one_of("middleware_first"),
        "middleware_first",
        langgraph=True,
    ),
    _declare_setting("http.enable_custom_route_auth", FLAG, False, langgraph=True),
    *(_declare_setting(f"http.disable_{name}", FLAG, False, langgraph=True) for name in _DISABLED),
    _declare_setting("http.a2a_needs_context", FLAG, False),
    _declare_setting("http.a2a_shared_contexts", FLAG, False),
    _declare_setting("http.webhook_hosts", HOSTS, ()),
    _declare_setting("http.webhook_secrets", SECRETS, (), secret=True),
    _declare_setting("http.signal_secrets", SECRETS, (), secret=True),
    _declare_setting("http.page", FLAG, False, flag="--page", derived="`true` in development, else `false`"),
    _declare_setting("http.inspector", FLAG, False, derived="`true` in development, else `false`"),
    _declare_setting("http.cors.allow_origins", ORIGINS, (), langgraph=True),
    _declare_setting(
        "http.cors.allow_origin_regex",
        PATTERN,
        langgraph=True,
        derived="this machine's own origins in development, else none",
    ),
    _declare_setting("http.cors.allow_methods", WORDS, ("*",), langgraph=True),
    _declare_setting("http.cors.allow_headers", WORDS, ("*",), langgraph=True),
    _declare_setting("http.cors.allow_credentials", FLAG, False, langgraph=True),
    _declare_setting("http.cors.expose_headers", WORDS, EXPOSED, langgraph=True),
    _declare_setting("http.cors.max_age", whole(0, _DAY_S), 600, langgraph=True),
    _declare_setting("limits.body_bytes", whole(1), 4 * 1024 * 1024),
    _declare_setting("limits.requests_per_minute", whole(1)),
    _declare_setting(
        "limits.streams", whole(1), derived="half of `total_streams` for a user with an identity, else none"
    ),
    _declare_setting("limits.total_streams", whole(1), 1000),
    _declare_setting("limits.total_waiting_runs", whole(1), 256),
    _declare_setting("limits.page_max", whole(1), _PAGE),
    _declare_setting("limits.recheck", SPAN, 30.0),
    _declare_setting("conversation.limit", whole(1), langgraph=True),
    _declare_setting(
        "conversation.summary", whole(1), langgraph=True, derived="an eighth of the limit with `summarize`"
    ),
    _declare_setting("conversation.keep", SHARE, 0.5, langgraph=True),
    _declare_setting("conversation.summarize", TEXT, langgraph=True),
    _declare_setting("conversation.counter", PLACE, langgraph=True),
    _declare_setting("conversation.system", TEXT, langgraph=True),
    _declare_setting("conversation.key", TEXT, "messages", langgraph=True),
    _declare_setting("conversation.graphs", CONVERSATIONS, langgraph=True),
    _declare_setting("questions", QUESTIONS, langgraph=True),
    _declare_setting("memory.enabled", FLAG, False, langgraph=True),
    _declare_setting(
        "memory.extract",
        FLAG,
        False,
        langgraph=True,
        variables=("PERDURE_MEMORY_EXTRACT", "ENABLE_FACT_EXTRACTION"),
    ),
    _declare_setting(
        "memory.model", TEXT, langgraph=True, variables=("PERDURE_MEMORY_MODEL", "FACT_EXTRACTION_MODEL")
    ),
    _declare_setting("memory.user", TEXT, langgraph=True),
    _declare_setting("memory.nearest", whole(0), 5, langgraph=True),
    _declare_setting("memory.newest", whole(0), 5, langgraph=True),
    _declare_setting("memory.tokens", whole(1), 1000, langgraph=True),
    _declare_setting("memory.debounce", AMOUNT, 10.0, langgraph=True),
    _declare_setting("memory.max_wait", AMOUNT, 120.0, langgraph=True),
    _declare_setting("store.database_url", TEXT, derived="the database of the threads", secret=True),
    _declare_setting(
        "store.type", one_of("memory", "redis", "postgres"), variables=("LANGGRAPH_STORE_TYPE",)
    ),
    _declare_setting(
        "store.redis_url", TEXT, variables=("LANGGRAPH_STORE_REDIS_URL", "REDIS_URL"), secret=True
    ),
    _declare_setting(
        "store.postgres_dsn", TEXT, variables=("LANGGRAPH_STORE_POSTGRES_DSN", "POSTGRES_DSN"), secret=True
    ),
    _declare_setting("store.index.dims", whole(1), langgraph=True),
    _declare_setting("store.index.embed", PLACE, langgraph=True, is_place=True),
    _declare_setting("store.index.fields", WORDS, ("$",), langgraph=True),
    _declare_setting("store.index.name", TEXT, derived="that of the embedding model"),
    _declare_setting("store.index.text", FLAG, False),
    _declare_setting("store.index.language", TEXT, derived="`english`"),
    _declare_setting("store.index.vector_weight", WEIGHT, derived="0.3"),
    _declare_setting(
        "store.ttl.default_ttl",
        SPAN,
        langgraph=True,
        variables=("PERDURE_STORE_TTL_DEFAULT_TTL", "LANGGRAPH_STORE_TTL_MINUTES"),
    ),
    _declare_setting("store.ttl.refresh_on_read", FLAG, True, langgraph=True),
    _declare_setting("store.ttl.sweep_interval_minutes", SPAN, langgraph=True),
    _declare_setting("checkpointer.ttl.strategy", one_of("delete", "keep_latest"), "delete", langgraph=True),
    _declare_setting("checkpointer.ttl.default_ttl", SPAN, langgraph=True),
    _declare_setting("checkpointer.ttl.sweep_interval_minutes", SPAN, 5.0, langgraph=True),
    _declare_setting("checkpointer.ttl.sweep_limit", whole(1), 1000, langgraph=True),
    _declare_setting("retention.keep_last", whole(1)),
    _declare_setting("retention.keep_for", DURATION),
    _declare_setting("retention.idle", DURATION),
    _declare_setting("retention.keep_tagged", FLAG, True),
    _declare_setting("retention.policies", POLICIES),
    _declare_setting("retention.assistants", NAMES),
    _declare_setting("retention.every", DURATION, "1h"),
    _declare_setting("retention.share", SHARE, 0.05),
    *_list_runtime_settings(),
    *_declare_chat_settings(
        "telegram",
        ("resend", "hold"),
        ("token", True),
        ("secret", True),
        ("api_url", False),
        flags=("polling",),
    ),
    *_declare_chat_settings(
        "slack",
        ("reconcile", "resend", "hold"),
        ("token", True),
        ("signing_secret", True),
        ("api_url", False),
    ),
    *_declare_chat_settings(
        "whatsapp",
        ("resend", "hold"),
        ("phone_id", False),
        ("token", True),
        ("app_secret", True),
        ("verify_token", True),
        ("api_url", False),
    ),
    _declare_setting("prices.models", PRICES, langgraph=True),
    _declare_setting("prices.currency", TEXT, "USD", langgraph=True),
    _declare_setting("metrics.host", TEXT, "127.0.0.1", flag="--metrics-host"),
    _declare_setting("metrics.port", whole(0, _PORT_MAX), flag="--metrics-port"),
]

SETTINGS = {setting.key: setting for setting in _LISTED}
"""All settings by key, in the order of the documentation."""
