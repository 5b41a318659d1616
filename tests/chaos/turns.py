"""A client that does not lose its way: what it says is said once, and what is told of it is followed to the
end, from server to server. It uses LangGraph's own client as it is."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from itertools import pairwise, zip_longest
from typing import Any, TypeVar, cast

import httpx
from langgraph_sdk.client import LangGraphClient
from langgraph_sdk.errors import InternalServerError
from langgraph_sdk.schema import RunCreateMetadata, StreamPart

from perdure.server.streaming.streams import iterate_until
from tests.chaos.fleet import GRAPH, WITHIN_S, Server
from tests.chaos.talker import reply_to

T = TypeVar("T")
MODES: Any = ["messages-tuple", "values"]
AGAIN_S = 0.1
ALL = "-1"
"""What a client says that wants everything from the beginning."""

Place = tuple[Server, LangGraphClient]


def said(text: str) -> dict[str, Any]:
    """An input of one message, as a page sends it."""
    return {"messages": [{"role": "user", "content": text}]}


def heard(values: Any) -> list[str]:
    """The texts of the messages in a state."""
    return [message["content"] for message in (values or {}).get("messages", ())]


@dataclass
class Turn:
    """One message and what was told of its run. ``left`` is how often the client went on at another server
    in the middle, ``repeats`` how often it had to say the message again."""

    text: str
    run_id: str = ""
    told: list[StreamPart] = field(default_factory=list[StreamPart])
    left: int = 0
    repeats: int = 0

    @property
    def is_over(self) -> bool:
        return bool(self.told) and self.told[-1].event == "end"

    @property
    def last_id(self) -> str:
        return next((part.id for part in reversed(self.told) if part.id), ALL)

    def began(self, made: RunCreateMetadata) -> None:
        self.run_id = made["run_id"]

    def follow(self, client: LangGraphClient, thread_id: str) -> AsyncIterator[StreamPart]:
        """The rest of what is told, or all of it, by a run that is made if there is none."""
        if self.run_id:
            return client.runs.join_stream(
                thread_id, self.run_id, stream_mode=MODES, last_event_id=self.last_id
            )
        return client.runs.stream(
            thread_id,
            GRAPH,
            input=said(self.text),
            stream_mode=MODES,
            stream_resumable=True,
            headers={"Idempotency-Key": self.text},
            on_run_created=self.began,
        )


async def take(turn: Turn, thread_id: str, places: Sequence[Place], *, leaves: bool) -> None:
    """Say something at the first place and follow it to the end. A client that ``leaves`` goes on at the next
    place when the server is killed; otherwise that is left to LangGraph's client, which comes back to the
    same address."""
    deadline = time.monotonic() + WITHIN_S
    at = 0
    while not turn.is_over:
        assert time.monotonic() < deadline, f"{turn.text} does not end; told were {len(turn.told)} parts"
        server, client = places[at % len(places)]
        gone = server.gone if leaves else asyncio.Event()
        was_made, before = bool(turn.run_id), len(turn.told)
        try:
            parts = cast(
                AsyncGenerator[StreamPart, None], iterate_until(gone, turn.follow(client, thread_id))
            )
            async with aclosing(parts):
                async for part in parts:
                    turn.told.append(part)
        except (httpx.TransportError, InternalServerError):
            await asyncio.sleep(AGAIN_S)
        if not turn.is_over:
            at += 1
            turn.repeats += not turn.run_id
            turn.left += was_made or len(turn.told) > before or bool(turn.run_id)


async def steadily(ask: Callable[[], Awaitable[T]]) -> T:
    """The answer to a question that may be asked again, when nobody answers it."""
    deadline = time.monotonic() + WITHIN_S
    while True:
        try:
            return await ask()
        except (httpx.TransportError, InternalServerError):
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(AGAIN_S)


async def replay(client: LangGraphClient, thread_id: str, run_id: str) -> list[StreamPart]:
    """All that is stored of what a run told."""

    async def ask() -> list[StreamPart]:
        stream = client.runs.join_stream(thread_id, run_id, stream_mode=MODES, last_event_id=ALL)
        return [part async for part in stream]

    return await steadily(ask)


def faults(turn: Turn, stored: Sequence[StreamPart], before: Sequence[str]) -> list[str]:
    """What is wrong with what a client was told, by what is stored of it and by what had been said before."""
    wrong: list[str] = []
    told = [part for part in turn.told if part.event != "end"]
    # An error has no id of its own: LangGraph's client gives it that of the part before it.
    ids = [int(part.id or 0) for part in told if part.event != "error"]
    if any(one >= other for one, other in pairwise(ids)) or not all(ids):
        wrong.append(f"ids do not increase: {ids}")
    is_stored = {part.id for part in stored if part.event != "end"}
    if missing := is_stored - {part.id for part in told}:
        wrong.append(f"{len(missing)} of {len(is_stored)} parts were not told")
    if invented := {part.id for part in told} - is_stored:
        wrong.append(f"{len(invented)} parts were told that are not stored")
    pairs = [(_sent(one), _sent(other)) for one, other in zip_longest(turn.told, stored)]
    if not wrong and (other := [(one, held) for one, held in pairs if one != held]):
        wrong.append(
            f"of {len(turn.told)} parts told and {len(stored)} stored these differ first: {other[:2]}"
        )
    if turn.told[-1].data != {"run_id": turn.run_id, "status": "success"}:
        errors = [part.data for part in told if part.event == "error"]
        wrong.append(f"it ended with {turn.told[-1].data} {errors or ''}")
    values = [part.data for part in told if part.event == "values"]
    if not values or heard(values[-1]) != [*before, turn.text, reply_to(turn.text)]:
        wrong.append(f"the last values were {heard(values[-1])[-3:] if values else 'none'}")
    wrong += [
        f"an attempt told {tokens!r}" for tokens in spoken(told) if not reply_to(turn.text).startswith(tokens)
    ]
    return [f"{turn.text}: {what}" for what in wrong]


def _sent(part: StreamPart | None) -> tuple[Any, ...] | None:
    """What a server sent of a part.

    The end has no id: LangGraph's client gives it that of the part before it on the same connection, and none
    when the connection broke between the two.
    """
    if part is None:
        return None
    return (part.event, part.data) if part.event == "end" else part[:3]


def spoken(told: Sequence[StreamPart]) -> list[str]:
    """What each attempt told of the reply, token by token."""
    attempts: list[str] = []
    for part in told:
        if part.event == "metadata":
            attempts.append("")
        elif part.event == "messages" and part.data[0]["type"] == "AIMessageChunk":
            attempts[-1] += part.data[0]["content"]
    return attempts
