"""What a server is told: which graphs, on which database, for whom, within which limits.

``load`` reads all of it once, before anything is imported or opened. Which source wins is decided in
``perdure.config``. What cannot work raises ``BadSetting``; nothing is guessed, and no secret is shown. The
graphs themselves are not looked at here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from langgraph.store.base import TTLConfig

from perdure.config.resolve import GraphPlace, ResolvedConfig, settle
from perdure.config.settings import EXPOSED, LOOPBACK_ORIGIN, SETTINGS
from perdure.config.sources import GivenValue
from perdure.errors import BadSetting


@dataclass(frozen=True, slots=True)
class Auth:
    """Who may come in. ``handlers`` is the place of a ``langgraph_sdk.Auth``, ``jwt`` what ``JwtSettings`` of
    ``perdure.server.auth.jwt`` takes. ``tenant_claims`` are the claims, or the fields of a handler's user,
    that together name a tenant; without any, all users share one."""

    handlers: str | None = None
    jwt: Mapping[str, Any] | None = field(default=None, repr=False)
    tenant_claims: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Cors:
    """What pages of other origins may do. ``expose_headers`` always has those that the SDK reads.
    ``max_age`` is in seconds."""

    allow_origins: tuple[str, ...] = ()
    allow_origin_regex: str | None = None
    allow_methods: tuple[str, ...] = ("*",)
    allow_headers: tuple[str, ...] = ("*",)
    allow_credentials: bool = False
    expose_headers: tuple[str, ...] = EXPOSED
    max_age: int = 600


@dataclass(frozen=True, slots=True)
class Http:
    """Where the server listens, and which routes it has. ``app`` is the place of the user's own ASGI
    application; with ``enable_custom_route_auth`` its routes are behind the same door as ours, inside of
    its middleware, which is what ``middleware_order`` can say. ``configurable_headers`` are the patterns of
    names of headers that runs can read, and of those that they cannot.
    ``webhook_hosts`` may be called at the end of runs although they are not public. With ``page`` there is a
    chat page at ``/chat``. Port 0 takes a free one."""

    host: str = "127.0.0.1"
    port: int = 2024
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
    webhook_hosts: tuple[str, ...] = ()
    page: bool = False
    cors: Cors = field(default_factory=Cors)


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """``requests_per_minute`` and ``streams``, those open at once, are a user's; ``None`` is no limit.
    ``page_max`` is how many entries one page of a listing may have."""

    body_bytes: int = 4 * 1024 * 1024
    requests_per_minute: int | None = None
    streams: int | None = None
    page_max: int = 1000


@dataclass(frozen=True, slots=True)
class ThreadTtl:
    """What becomes of threads that nobody speaks to for ``default_ttl`` minutes. A sweep takes at most
    ``sweep_limit`` of them."""

    default_ttl: float
    strategy: Literal["delete", "keep_latest"] = "delete"
    sweep_interval_minutes: float = 5.0
    sweep_limit: int = 1000


@dataclass(frozen=True, slots=True)
class Config:
    """A server's configuration, checked.

    ``runtime`` has what was said of ``perdure.runtime.Settings``, ``store`` is for ``Database.store(ttl=…)``.
    ``env`` are variables to set before a graph is imported; none of them is set yet. ``root`` is the folder
    of the configuration file, the project's. ``sources`` are the files and the names of the variables that
    were used, ``ignored`` what was said in vain: both may be logged.
    """

    database_url: str = field(repr=False)
    graphs: Mapping[str, GraphPlace]
    assistants: Mapping[str, Mapping[str, Any]] = field(repr=False)
    auth: Auth
    http: Http
    limits: RequestLimits
    runtime: Mapping[str, Any]
    development: bool
    store: TTLConfig | None
    checkpointer: ThreadTtl | None
    env: Mapping[str, str] = field(repr=False)
    root: Path
    sources: tuple[str, ...]
    ignored: tuple[str, ...]


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
    has_key: bool = False,
) -> Config:
    """The configuration of a server. Without ``file`` the current folder's ``perdure.toml`` and
    ``langgraph.json`` are read, each if it is there; with it, that one alone. ``graphs`` are ``[NAME=]PLACE``
    and replace those of files; the other arguments are flags, ``None`` where one was not given. ``has_key``
    says that what is stored is sealed.
    """
    settled = settle(
        file=file,
        graphs=graphs,
        flags={
            "database_url": (db, "--db"),
            "http.host": (host, "--host"),
            "http.port": (port, "--port"),
            "development": (development, "--dev"),
            "http.page": (page, "--page"),
        },
        environ=environ,
        has_key=has_key,
    )
    is_development = bool(settled["development"])
    claims = settled["auth.tenant_claims"]
    if claims is None:
        claims = ("sub",) if settled.given("auth.jwt.") else ()
    return Config(
        database_url=settled.database_url(),
        graphs=settled.graphs("perdure serve ./agent.py:graph"),
        assistants=_assistants(settled),
        auth=Auth(settled["auth.path"], _jwt(settled, claims), claims),
        http=_http(settled, is_development),
        limits=RequestLimits(**settled.table("limits.")),
        runtime=settled.runtime(),
        development=is_development,
        store=settled.store_ttl(),
        checkpointer=_thread_ttl(settled),
        env=settled.env,
        root=settled.root,
        sources=settled.sources,
        ignored=settled.ignored,
    )


def _assistants(settled: ResolvedConfig) -> dict[str, Any]:
    given: dict[str, Any] = settled["assistants"] or {}
    known = settled.graphs("perdure serve ./agent.py:graph")
    if unknown := set(given) - set(known):
        raise BadSetting(
            f"{settled.name('assistants')} has a config for {min(unknown)!r}, which is no graph; the graphs "
            f"are {', '.join(sorted(known))}"
        )
    return given


def _http(settled: ResolvedConfig, is_development: bool) -> Http:
    table = settled.table("http.")
    if "http.page" not in settled:
        table["page"] = is_development
    return Http(**table, cors=_cors(settled, is_development))


def _cors(settled: ResolvedConfig, is_development: bool) -> Cors:
    cors = settled.table("http.cors.")
    if cors["allow_credentials"] and "*" in cors["allow_origins"]:
        origins = settled.name("http.cors.allow_origins")
        raise BadSetting(
            f"{settled.name('http.cors.allow_credentials')} is true and {origins} has '*': any page could "
            "act for whoever is signed in; name the origins, or leave credentials out"
        )
    if is_development and "http.cors.allow_origin_regex" not in settled:
        cors["allow_origin_regex"] = LOOPBACK_ORIGIN
    cors["expose_headers"] = tuple(dict.fromkeys((*EXPOSED, *cors["expose_headers"])))
    return Cors(**cors)


def _thread_ttl(settled: ResolvedConfig) -> ThreadTtl | None:
    table = settled.table("checkpointer.ttl.")
    if not settled.given("checkpointer.ttl."):
        return None
    if table["default_ttl"] is None:
        said = next(each for key, each in settled.said.items() if key.startswith("checkpointer.ttl."))
        raise BadSetting(
            f"{said.name} says what becomes of old threads, and nothing says when; set "
            "checkpointer.ttl.default_ttl, in minutes"
        )
    return ThreadTtl(**table)


def _jwt(settled: ResolvedConfig, claims: tuple[str, ...]) -> dict[str, Any] | None:
    """What ``perdure.server.auth.jwt.JwtSettings`` takes; it knows what is safe."""
    given = settled.given("auth.jwt.")
    if not given:
        return None
    from perdure.server.auth.jwt import JwtSettings

    usual = ("HS256",) if "secret" in given else ("RS256",)
    jwt: dict[str, Any] = {
        "issuer": (),
        "audience": (),
        "algorithms": usual,
        **given,
        "tenant_claims": claims,
    }
    if "public_key" in given:
        jwt["public_key"] = _public_key(settled.said["auth.jwt.public_key"], given["public_key"])
    try:
        JwtSettings(**jwt)
    except BadSetting as error:
        name = f"auth.jwt.{str(error).partition(' ')[0]}"
        raise BadSetting(f"{settled.name(name if name in SETTINGS else 'auth.jwt')}: {error}") from error
    return jwt


def _public_key(said: GivenValue, key: str) -> str:
    """A key in PEM form, or of the file that was named. The environment may write line ends as ``\\n``."""
    if "-----BEGIN" in key:
        return key.replace("\\n", "\n")
    try:
        return (said.base / key).read_text(encoding="ascii")
    except (OSError, ValueError):
        raise BadSetting(
            f"{said.name} is neither a key in PEM form nor the path of a file with one; check the path"
        ) from None
