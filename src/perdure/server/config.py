"""Configuration of a server: graphs, database, authentication, routes and limits.

``load`` reads it once, before anything is imported or opened. ``perdure.config`` decides which source
takes precedence. A setting that cannot work raises ``BadSetting``; nothing is guessed, and no secret is
shown. The graphs themselves are not loaded here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from perdure.config.common import CommonConfig, load_common
from perdure.config.resolve import ResolvedConfig, resolve_config
from perdure.config.retention import thread_ttl
from perdure.config.settings import EXPOSED, LOOPBACK_ORIGIN, SETTINGS
from perdure.config.sources import GivenValue
from perdure.errors import BadSetting
from perdure.model.model_calls import NO_PRICES, Prices
from perdure.model.retention_policy import ThreadTtl


@dataclass(frozen=True, slots=True)
class Auth:
    """Authentication settings. ``handlers`` is the place of a ``langgraph_sdk.Auth``, ``jwt`` the
    arguments of ``perdure.server.auth.jwt.JwtSettings``. ``tenant_claims`` are the claims, or the fields
    of a handler's user, that together name a tenant; without any, all users share one."""

    handlers: str | None = None
    jwt: Mapping[str, Any] | None = field(default=None, repr=False)
    tenant_claims: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Cors:
    """Settings of cross-origin requests. ``expose_headers`` always includes the headers that the SDK
    reads. ``max_age`` is in seconds."""

    allow_origins: tuple[str, ...] = ()
    allow_origin_regex: str | None = None
    allow_methods: tuple[str, ...] = ("*",)
    allow_headers: tuple[str, ...] = ("*",)
    allow_credentials: bool = False
    expose_headers: tuple[str, ...] = EXPOSED
    max_age: int = 600


@dataclass(frozen=True, slots=True)
class Http:
    """Address and routes of the server. ``hosts`` are the further host names to which a server without
    authentication answers. Port 0 selects a free port.

    ``app`` is the place of a custom ASGI application; with ``enable_custom_route_auth`` its routes need
    the same authentication as the API's. Its middleware runs before this check: ``middleware_order`` has no
    other value. ``configurable_headers`` are patterns of the header names that runs can read, and of those
    that they cannot. ``webhook_hosts`` may be called at the end of runs although they are not public;
    ``webhook_secrets`` sign the notices of webhooks, ``signal_secrets`` the signals of callers without a
    token. With ``a2a_needs_context`` a message of A2A without a ``contextId`` is refused; with
    ``a2a_shared_contexts`` all agents use the one thread of a context. With ``page`` there is a chat page at
    ``/chat``, with ``inspector`` the inspector at ``/inspect``, which shows costs by ``prices``.
    """

    host: str = "127.0.0.1"
    port: int = 2024
    hosts: tuple[str, ...] = ()
    app: str | None = None
    mount_prefix: str | None = None
    enable_custom_route_auth: bool = False
    configurable_headers: tuple[tuple[str, ...], tuple[str, ...]] | None = None
    middleware_order: Literal["middleware_first"] = "middleware_first"
    disable_assistants: bool = False
    disable_threads: bool = False
    disable_runs: bool = False
    disable_store: bool = False
    disable_meta: bool = False
    disable_webhooks: bool = False
    disable_a2a: bool = False
    a2a_needs_context: bool = False
    a2a_shared_contexts: bool = False
    disable_mcp: bool = False
    webhook_hosts: tuple[str, ...] = ()
    webhook_secrets: tuple[str, ...] = field(default=(), repr=False)
    signal_secrets: tuple[str, ...] = field(default=(), repr=False)
    page: bool = False
    inspector: bool = False
    prices: Prices = NO_PRICES
    cors: Cors = field(default_factory=Cors)


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """Limits per request, user and process; None means no limit, except for ``streams``.

    Attributes:
        body_bytes: The size of a body.
        requests_per_minute: The requests of a user.
        streams: The streams and waiting requests of a user that are open at the same time; by default half of
            ``total_streams`` for a user with an identity.
        total_streams: The streams and waiting requests of the process that are open at the same time.
        total_waiting_runs: The runs that may wait for a slot of the process before a request that would wait
            for one more is refused.
        page_max: The entries in a page of a listing.
        recheck: Seconds between two checks that the user of an open stream is authenticated and may read its
            thread.
    """

    body_bytes: int = 4 * 1024 * 1024
    requests_per_minute: int | None = None
    streams: int | None = None
    total_streams: int | None = 1000
    total_waiting_runs: int | None = 256
    page_max: int = 1000
    recheck: float = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(CommonConfig):
    """The validated configuration of a server.

    Attributes:
        auth: Authentication settings.
        http: Address and routes.
        limits: Limits per request, user and process.
        runtime: The arguments of ``make_runtime_settings`` that are set.
        checkpointer: Time to live of threads, if one is set.
        files: The configuration files, and the file of environment variables, which need not exist.
    """

    auth: Auth
    http: Http
    limits: RequestLimits
    runtime: Mapping[str, Any]
    checkpointer: ThreadTtl | None
    files: tuple[Path, ...] = ()


def load(
    *,
    file: Path | None,
    graphs: Sequence[str] = (),
    db: str | None = None,
    host: str | None = None,
    port: int | None = None,
    development: bool | None = None,
    page: bool | None = None,
    environ: Mapping[str, str],
    keys: str | None = None,
) -> Config:
    """Return the configuration of a server. Flags take precedence over files.

    Args:
        file: the only configuration file to read; None reads ``perdure.toml`` and ``langgraph.json`` in
            the current folder, each if it exists.
        graphs: graphs as ``[NAME=]PLACE``, which replace the files' graphs.
        db: URL of the database. None, here and in the flags below, means that the flag is not given.
        host: address to listen on.
        port: port to listen on.
        development: development mode.
        page: serve the chat page.
        environ: environment variables.
        keys: the provider that wraps the keys of an encrypted database.

    Raises:
        BadSetting: a setting is missing or cannot work.
    """
    configuration = resolve_config(
        file=file,
        graphs=graphs,
        flags={
            "database_url": (db, "--db"),
            "keys": (keys, "--keys"),
            "http.host": (host, "--host"),
            "http.port": (port, "--port"),
            "development": (development, "--dev"),
            "http.page": (page, "--page"),
        },
        environ=environ,
    )
    claims = configuration["auth.tenant_claims"]
    if claims is None:
        claims = ()
        if configuration.select_given("auth.jwt."):
            claims = ("sub",)
    common = load_common(configuration, "perdure serve ./agent.py:graph")
    return Config(
        **common,
        auth=Auth(configuration["auth.path"], _parse_jwt(configuration, claims), claims),
        http=_parse_http(configuration, common["development"]),
        limits=RequestLimits(**configuration.table("limits.")),
        runtime=configuration.runtime(),
        checkpointer=thread_ttl(configuration),
        files=configuration.files,
    )


def _parse_http(configuration: ResolvedConfig, is_development: bool) -> Http:
    table = configuration.table("http.")
    if "http.page" not in configuration:
        table["page"] = is_development
    if "http.inspector" not in configuration:
        table["inspector"] = is_development
    prices = Prices(configuration["prices.models"] or {}, configuration["prices.currency"])
    return Http(**table, prices=prices, cors=_parse_cors(configuration, is_development))


def _parse_cors(configuration: ResolvedConfig, is_development: bool) -> Cors:
    cors = configuration.table("http.cors.")
    if cors["allow_credentials"] and "*" in cors["allow_origins"]:
        origins = configuration.name("http.cors.allow_origins")
        raise BadSetting(
            f"{configuration.name('http.cors.allow_credentials')} is true and {origins} has '*': any page "
            "could act for a signed-in user; name the origins, or leave credentials out"
        )
    if is_development and "http.cors.allow_origin_regex" not in configuration:
        cors["allow_origin_regex"] = LOOPBACK_ORIGIN
    cors["expose_headers"] = tuple(dict.fromkeys((*EXPOSED, *cors["expose_headers"])))
    return Cors(**cors)


def _parse_jwt(configuration: ResolvedConfig, claims: tuple[str, ...]) -> dict[str, Any] | None:
    """Return the arguments of ``perdure.server.auth.jwt.JwtSettings``, which refuses unsafe ones."""
    given = configuration.select_given("auth.jwt.")
    if not given:
        return None
    from perdure.server.auth.jwt import JwtSettings

    default_algorithms = ("HS256",) if "secret" in given else ("RS256",)
    jwt: dict[str, Any] = {
        "issuer": (),
        "audience": (),
        "algorithms": default_algorithms,
        **given,
        "tenant_claims": claims,
    }
    if "public_key" in given:
        jwt["public_key"] = _read_public_key(
            configuration.entries["auth.jwt.public_key"], given["public_key"]
        )
    try:
        JwtSettings(**jwt)
    except BadSetting as error:
        name = f"auth.jwt.{str(error).partition(' ')[0]}"
        raise BadSetting(
            f"{configuration.name(name if name in SETTINGS else 'auth.jwt')}: {error}"
        ) from error
    return jwt


def _read_public_key(given: GivenValue, key: str) -> str:
    r"""Return a key in PEM form, given as such or as the path of a file. The environment may write line
    ends as ``\\n``."""
    if "-----BEGIN" in key:
        return key.replace("\\n", "\n")
    try:
        return (given.base / key).read_text(encoding="ascii")
    except (OSError, ValueError):
        raise BadSetting(
            f"{given.name} is neither a key in PEM form nor the path of a file with one; check the path"
        ) from None
