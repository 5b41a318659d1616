"""Handlers for AWS Lambda: HTTP requests for an ASGI application, a schedule for what a worker's loop does,
and functions of one's own with an open database."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from urllib.parse import quote, unquote

from perdure.database.base import DatabaseBase, handle_of
from perdure.errors import MissingExtra, Unavailable
from perdure.model.ops import Now
from perdure.model.program import ask
from perdure.serverless.asgi import AsgiApp, find_opened, lifespan_of, runtime_of
from perdure.serverless.warm_resources import Container

try:
    from mangum.adapter import DEFAULT_TEXT_MIME_TYPES
    from mangum.handlers import APIGateway, HTTPGateway
    from mangum.protocols import HTTPCycle
    from mangum.protocols.http import HTTPCycleState
    from mangum.types import LambdaConfig
except ImportError as missing:
    raise MissingExtra("perdure.serverless needs an extra: pip install 'perdure[serverless]'") from missing

if TYPE_CHECKING:
    from perdure.web.prefixes import Prefixed

R = TypeVar("R")

RESERVE_S = 7.0
"""Seconds of a call that are kept for releasing work and answering."""

_log = logging.getLogger("perdure.serverless")
_SCHEDULES = ("aws.events", "aws.scheduler")
_IN_PATHS = "/:@!$&'()*+,;="
"""Characters that a path has as they are, besides those that are never encoded."""
_TOO_LONG = "The request took longer than the function may run; send it again with the same Idempotency-Key."
_UNAVAILABLE = "The database does not answer; try again."


class LambdaHandler:
    """A handler as Lambda calls it, with an event and its context. Made by ``lambda_handler`` and
    ``lambda_function``."""

    def __init__(self, handle: Callable[[Mapping[str, Any], Any], Any], container: Container[Any]) -> None:
        self._handle = handle
        self._container = container

    def __call__(self, event: Mapping[str, Any], context: Any) -> Any:
        return self._handle(event, context)

    def close(self) -> None:
        """Close what the container has opened. Lambda never calls this; tests do, at their end."""
        self._container.close()


class LambdaContext(Protocol):
    """The part of Lambda's context that is used."""

    def get_remaining_time_in_millis(self) -> int: ...


@dataclass(frozen=True, slots=True)
class TimeBudget:
    """Time left to a call, as Lambda states it at the call's start."""

    ends_at: float
    reserve: float

    @classmethod
    def of(cls, context: LambdaContext, reserve: float) -> TimeBudget:
        """Return the budget of a call. A third of a short budget is kept in reserve."""
        left = context.get_remaining_time_in_millis() / 1000
        return cls(time.monotonic() + left, min(reserve, left / 3))

    def time_left(self) -> float:
        """Return the seconds for work, at least 0."""
        return max(0.0, self.ends_at - time.monotonic() - self.reserve)


def lambda_handler(
    app: AsgiApp, *, base_path: str = "/", reserve: float = RESERVE_S, sweep: bool = True
) -> LambdaHandler:
    """Return a Lambda handler for an ASGI application.

    It answers the events of API Gateway's HTTP and REST APIs and of function URLs, and those of EventBridge's
    rules and schedules, for which it executes everything that is due. If the application has opened a
    runtime with ``checkpoint_lifespan(serve=True)``, a call finishes the runs and replies that it began; what
    does not fit its time is released, and due for the next call with the same ``Idempotency-Key``, or the
    next schedule.

    Args:
        app: The application. Its lifespan starts in the first call of a container, and again if that fails,
            or if the database does not answer after a pause.
        base_path: A path in front of every route, such as the stage of an API. It is the ``root_path`` of
            requests that have it, and is added to the addresses in the headers of their responses. Requests
            without it are answered as well.
        reserve: Seconds of a call that are kept for releasing work.
        sweep: False to leave the sweeps of threads and items to another process.

    Raises:
        ValueError: The base path is not a path.
        Exception: The start of the application raised it. If the database is unavailable, the answer is a 503
            instead.
    """
    prefixed = _mount(app, base_path)
    config = LambdaConfig(
        api_gateway_base_path="/", text_mime_types=[*DEFAULT_TEXT_MIME_TYPES], exclude_headers=[]
    )
    container = Container(lambda: lifespan_of(app), lambda _: _check_app(app))

    def handle(event: Mapping[str, Any], context: Any) -> Any:
        budget = TimeBudget.of(context, reserve)
        if is_scheduled(event):
            return container.call(lambda _: _work_off(app, budget, sweep))
        request = _read_request(event, context, config)
        path = _read_path(event, prefixed)
        cycle = HTTPCycle(
            {**request.scope, "path": unquote(path), "raw_path": path.encode("ascii")}, request.body
        )
        routed = app
        if prefixed is not None and prefixed.has(cycle.scope["path"]):
            routed = prefixed
        try:
            answered = container.call(lambda state: _serve(app, routed, cycle, state, budget))
        except Unavailable as error:
            _log.warning("the database does not answer: %s", type(error).__name__)
            return request(_make_refusal(503, _UNAVAILABLE))
        if not answered:
            return request(_make_refusal(504, _TOO_LONG))
        return request({"status": cycle.status, "headers": cycle.headers, "body": cycle.body})

    return LambdaHandler(handle, container)


def lambda_function(
    opening: Callable[[], AbstractAsyncContextManager[R]],
) -> Callable[[Callable[[Mapping[str, Any], Any, R], Awaitable[Any]]], LambdaHandler]:
    """Make a Lambda handler of a coroutine function ``(event, context, resource)``.

    >>> @lambda_function(lambda: perdure.connect(os.environ["DATABASE_URL"]))
    ... async def handler(event, context, database):
    ...     return [thread.thread_id async for thread in database.threads()]

    Args:
        opening: Opens the resource for the first call of a container, such as a database. A database that
            does not answer after a pause is opened again.
    """

    def decorate(function: Callable[[Mapping[str, Any], Any, R], Awaitable[Any]]) -> LambdaHandler:
        container = Container(opening, _check_resource)

        def handle(event: Mapping[str, Any], context: Any) -> Any:
            return container.call(lambda resource: function(event, context, resource))

        return LambdaHandler(handle, container)

    return decorate


def is_scheduled(event: Mapping[str, Any]) -> bool:
    """Return True if an event is of a rule or schedule of EventBridge."""
    return event.get("source") in _SCHEDULES or event.get("detail-type") == "Scheduled Event"


class _RestRequest(APIGateway):
    """A request of a REST API, or of an HTTP API with the payload format 1.0. A header that was sent several
    times stays several headers, so that two credentials do not become one value."""

    @property
    def scope(self) -> Any:
        scope = super().scope
        several: Mapping[str, Any] = self.event.get("multiValueHeaders") or {}
        if several:
            scope["headers"] = [
                [name.lower().encode("latin-1"), str(value).encode("latin-1", "replace")]
                for name, values in several.items()
                for value in _join_cookies(name, values or ())
            ]
        return scope


def _join_cookies(name: str, values: Sequence[str]) -> Sequence[str]:
    if name.lower() == "cookie":
        return ["; ".join(values)]
    return values


def _read_request(event: Mapping[str, Any], context: Any, config: LambdaConfig) -> HTTPGateway | _RestRequest:
    """Return the request of an event. ``ValueError`` if it has none."""
    about = event.get("requestContext") or {}
    if event.get("version") == "2.0" and "http" in about:
        return HTTPGateway(dict(event), context, config)
    if "httpMethod" in event and "path" in event and about and "elb" not in about:
        return _RestRequest(dict(event), context, config)
    raise ValueError(
        "an event of an HTTP API or a REST API, a function URL, or a schedule is expected; "
        f"this one has the keys {', '.join(sorted(map(str, event)))}"
    )


def _mount(app: AsgiApp, base_path: str) -> Prefixed | None:
    """Return the application below a path, None if the path is empty. ``ValueError`` if it is not one."""
    if not base_path.strip("/"):
        return None
    # Functions without an HTTP application have no need of these.
    from perdure.config.value_kinds import PREFIX
    from perdure.web.prefixes import Prefixed

    try:
        prefix = PREFIX.check(f"/{base_path.strip('/')}")
    except ValueError:
        raise ValueError(f"base_path is {base_path!r}; it has to be {PREFIX.wants}") from None
    return Prefixed(app, prefix)


def _read_path(event: Mapping[str, Any], prefixed: Prefixed | None) -> str:
    """Return the path of a request in its encoded form. It begins with the prefix if the client's did."""
    about = event["requestContext"]
    given = str(event["rawPath"] if "http" in about else event["path"]) or "/"
    # An HTTP API decodes paths, in both of its formats; a REST API and a function URL do not.
    is_decoded = "version" in event and ".lambda-url." not in str(about.get("domainName"))
    path = quote(given, safe=_IN_PATHS if is_decoded else f"{_IN_PATHS}%")
    # A REST API removes its stage from the path, except behind a domain of one's own.
    if prefixed is not None and not prefixed.has(path) and prefixed.has(str(about.get("path"))):
        return f"{prefixed.prefix}{path}"
    return path


async def _serve(
    app: AsgiApp, routed: AsgiApp, cycle: HTTPCycle, state: Mapping[str, Any], budget: TimeBudget
) -> bool:
    """Answer a request by ``routed``, which leads to ``app``, and end what it began. Return False if the
    response took too long. A response that is complete counts, whatever goes on after it."""
    runtime = runtime_of(app)
    if runtime is not None:
        await runtime.resume()
    cycle.scope["state"] = dict(state)
    is_over = True

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        try:
            await routed(scope, receive, send)
        except BaseException:
            # Mangum logs the traceback of every error, also of those that the end of the time has caused.
            if is_over:
                raise
        else:
            if is_over and cycle.state is not HTTPCycleState.COMPLETE:
                raise RuntimeError("the application has returned before its response was complete")

    answering = asyncio.ensure_future(cycle.run(answer))
    is_answered = is_released = False
    try:
        await asyncio.wait([answering], timeout=budget.time_left())
        is_over = answering.done()
        is_answered = is_over or cycle.state is HTTPCycleState.COMPLETE
        if not is_over:
            answering.cancel()
            await asyncio.wait([answering], timeout=1)
    finally:
        if runtime is not None:
            is_released = not await runtime.pause(budget.time_left())
    request = f"{cycle.scope['method']} {cycle.scope['raw_path'].decode()}"
    if not is_answered:
        _log.warning(
            "%s did not fit the time of the call and was answered with 504; send it again with the same "
            "Idempotency-Key, or raise the function's timeout or memory",
            request,
        )
    elif not is_over:
        _log.warning(
            "%s was answered, but what the application did after its response did not fit the time of the "
            "call and was cancelled; raise the function's timeout, or do it elsewhere",
            request,
        )
    elif is_released:
        _log.warning(
            "work that did not fit the time of the call was released; the next call or schedule continues it"
        )
    return is_answered


async def _work_off(app: AsgiApp, budget: TimeBudget, sweep: bool) -> dict[str, Any]:
    """Do what a worker's loop does: runs, replies and scheduled messages that are due, and retention."""
    runtime = runtime_of(app)
    if runtime is None:
        raise ValueError(
            "this application has no runtime, so there is nothing to do on a schedule; open one with "
            "checkpoint_lifespan(…, serve=True), or remove the schedule"
        )
    await runtime.resume()
    try:
        is_done = await runtime.work_off(budget.time_left())
        swept = 0
        sweeps = find_opened(app).sweeps
        if sweep and sweeps is not None and budget.time_left() and await sweeps.count_seconds_left() <= 0:
            try:
                async with asyncio.timeout(budget.time_left()):
                    done = await sweeps.sweep(share=1.0)  # No other work of this process waits.
            except TimeoutError:
                _log.info("the sweep did not fit the time of the call; a later one continues it")
            else:
                swept = 0 if done is None else done.expired
    finally:
        await runtime.pause(budget.time_left())
    return {"is_done": is_done, "swept": swept}


async def _check_app(app: object) -> None:
    runtime = runtime_of(app)
    if runtime is not None:
        await runtime.check()
    else:
        await _check_resource(getattr(find_opened(app), "database", None))


async def _check_resource(resource: object) -> None:
    if isinstance(resource, DatabaseBase):
        await handle_of(resource).arun(ask(Now()))


def _make_refusal(status: int, detail: str) -> Any:
    return {
        "status": status,
        "headers": [[b"content-type", b"application/json"], [b"retry-after", b"1"]],
        "body": json.dumps({"detail": detail}).encode(),
    }
