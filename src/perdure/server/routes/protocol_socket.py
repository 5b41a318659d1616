"""WebSocket of the event streaming protocol: subscriptions to a thread's events, and its commands.

A client sends commands as text, one JSON object each, and receives their responses and the events of all of
its subscriptions. An event that several subscriptions want is sent once for each; clients recognise it by its
``event_id``. A refused connection is closed with 4000 plus the HTTP status, and all are closed with 1012 when
the server stops: the client connects again, and subscribes with ``since``. Each command counts as a request
of its user, who is authenticated again for it, and at an interval while only events are sent: a connection
does not outlive its token.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from fastapi import WebSocket, WebSocketDisconnect
from pydantic import BaseModel, ConfigDict, ValidationError

from perdure.errors import QueueFull, Unavailable
from perdure.runtime.json_encoding import to_json
from perdure.server.auth.filters import Filter
from perdure.server.auth.identity import Refusal
from perdure.server.error_handlers import make_public_message, status_of
from perdure.server.json_bodies import parse_json
from perdure.server.openapi import make_router
from perdure.server.origins import is_allowed
from perdure.server.resources import Caller, caller_of, read_thread_in_path
from perdure.server.routes.protocol import error, execute, parse_envelope
from perdure.server.streaming import protocol_subscriptions
from perdure.server.streaming.protocol_events import ProtocolEvent
from perdure.server.streaming.protocol_subscriptions import Failed
from perdure.server.streaming.reading_rights import ReadingRights, authenticate_again, reads_as_before

router = make_router("protocol")

_log = logging.getLogger("perdure.server")
_SUBSCRIPTIONS_MOST = 32
_REFUSED = 4000
_TOO_LARGE = 1009
_RESTARTS = 1012
_REASON_MAX = 120
"""Bytes of a reason for closing; the protocol allows 123."""

_Events = AsyncGenerator[ProtocolEvent | Failed, None]


class _SubscriptionName(BaseModel):
    """Parameters that name a subscription of this socket."""

    model_config = ConfigDict(extra="ignore")

    subscription_id: str


@router.websocket("/threads/{thread_id}/stream/events")
async def events(websocket: WebSocket) -> None:
    """Exchange commands and events of a thread until one side closes."""
    await websocket.accept()
    try:
        if not is_allowed(websocket):
            raise Refusal(403, "pages of this origin may not connect; allow it in http.cors.allow_origins")
        caller = await caller_of(websocket)
        thread_id = read_thread_in_path(websocket)
        conditions = await caller.may("threads", "read", {"thread_id": thread_id})
        await _Socket(websocket, caller, thread_id, conditions).serve()
    except Refusal as refusal:
        await _close(websocket, _REFUSED + refusal.status, refusal.detail)
    except (QueueFull, Unavailable) as failed:
        await _close(websocket, _REFUSED + status_of(failed), make_public_message(failed))


async def _close(websocket: WebSocket, code: int, reason: str) -> None:
    await websocket.close(code, reason.encode()[:_REASON_MAX].decode(errors="ignore"))


class _Socket:
    """One connection: what it is subscribed to, and its commands, one after the other."""

    def __init__(
        self, websocket: WebSocket, caller: Caller, thread_id: str, conditions: Filter | None
    ) -> None:
        self._websocket = websocket
        self._caller = caller
        self._thread_id = thread_id
        self._conditions = conditions
        self._subscriptions: dict[str, asyncio.Task[None]] = {}
        self._subscription_ended = asyncio.Event()

    async def serve(self) -> None:
        """Serve the connection until the client closes it, a subscription fails, or the server stops."""
        reading = asyncio.create_task(self._read_commands())
        reads = reads_as_before(self._thread_id, self._conditions)
        rights = ReadingRights(self._websocket, self._caller, reads)
        checking = asyncio.create_task(rights.wait_until_lost())
        end_tasks: list[asyncio.Task[Any]] = [
            reading,
            checking,
            asyncio.create_task(self._caller.host.closing.wait()),
            asyncio.create_task(self._subscription_ended.wait()),
        ]
        try:
            await asyncio.wait(end_tasks, return_when=asyncio.FIRST_COMPLETED)
            if reading.done():
                await reading
                return
            if checking.done():
                raise await checking
            await _close(self._websocket, _RESTARTS, "connect again, and subscribe with since")
        except WebSocketDisconnect:
            return
        finally:
            tasks: list[asyncio.Task[Any]] = [*end_tasks, *self._subscriptions.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _read_commands(self) -> None:
        most = self._caller.host.limits.body_bytes
        while True:
            message = await self._websocket.receive()
            if message["type"] == "websocket.disconnect":
                return
            text = message.get("text") or (message.get("bytes") or b"").decode(errors="replace")
            if len(text.encode()) > most:
                await _close(self._websocket, _TOO_LARGE, f"a command has at most {most} bytes")
                return
            self._caller = await authenticate_again(self._websocket, self._caller)
            self._caller.host.throttle.request(self._caller.user)
            await self._execute(text)

    async def _execute(self, text: str) -> None:
        number = None
        try:
            body = _parse_object(text)
            number, method, params = parse_envelope(body)
            match method:
                case "subscription.subscribe":
                    if len(self._subscriptions) >= _SUBSCRIPTIONS_MOST:
                        reason = f"a connection has at most {_SUBSCRIPTIONS_MOST} subscriptions"
                        raise Refusal(400, f"{reason}; end one of them first")
                    await self._begin_subscription(number, str(uuid.uuid4()), params)
                case "subscription.reconnect":
                    subscription = protocol_subscriptions.read(params)
                    if (name := await self._end_subscription(number, params)) is not None:
                        await self._begin_subscription(number, name, subscription.model_dump())
                case "subscription.unsubscribe":
                    if await self._end_subscription(number, params) is not None:
                        await self._send({"type": "success", "id": number, "result": {}})
                case _:
                    headers = self._websocket.headers
                    await self._send(await execute(self._caller, headers, self._thread_id, body))
        except Refusal as refusal:
            if refusal.status >= 429:
                raise
            await self._send(error(number, "invalid_argument", refusal.detail))

    async def _begin_subscription(self, number: int, name: str, params: dict[str, Any]) -> None:
        subscription = protocol_subscriptions.read(params)
        subscribed = await protocol_subscriptions.subscribe(
            self._caller, self._thread_id, self._conditions, subscription
        )
        await self._send({"type": "success", "id": number, "result": {"subscription_id": name}})
        self._subscriptions[name] = asyncio.create_task(self._forward(subscribed))

    async def _end_subscription(self, number: int, params: dict[str, Any]) -> str | None:
        """End a subscription and return its name, or send an error if it does not exist."""
        try:
            name = _SubscriptionName.model_validate(params).subscription_id
        except ValidationError:
            raise Refusal(400, "params.subscription_id names a subscription") from None
        task = self._subscriptions.pop(name, None)
        if task is None:
            missing = error(number, "no_such_subscription", f"this connection has no subscription {name!r}")
            await self._send(missing)
            return None
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return name

    async def _forward(self, subscribed: _Events) -> None:
        try:
            async with aclosing(subscribed):
                async for event in subscribed:
                    if isinstance(event, Failed):
                        await self._send(error(None, "unknown_error", event.message))
                        break
                    await self._websocket.send_text(event.text)
        except (WebSocketDisconnect, RuntimeError):
            _log.debug("a client disconnected while an event was sent to it")
        self._subscription_ended.set()

    async def _send(self, data: dict[str, Any]) -> None:
        await self._websocket.send_text(to_json(data))


def _parse_object(text: str) -> dict[str, Any]:
    try:
        body = parse_json(text)
    except (ValueError, RecursionError):
        raise Refusal(400, "a command is one JSON object; this is not JSON, or nested too deeply") from None
    if not isinstance(body, dict):
        raise Refusal(400, "a command is a JSON object")
    return body
