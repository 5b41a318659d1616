"""What the acceptance tests say to a server, and how they read what it says."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterable, Mapping
from datetime import datetime
from typing import Any

from langgraph_sdk.client import LangGraphClient
from langgraph_sdk.schema import StreamPart

from tests.server.acceptance.serving import eventually


def said(*texts: str) -> dict[str, Any]:
    """An input of messages, as a page sends them."""
    return {"messages": [{"role": "user", "content": text} for text in texts]}


def heard(values: Any) -> list[str]:
    """The texts of the messages in a state."""
    return [message["content"] for message in (values or {}).get("messages", ())]


def row(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return an answer as the object that was sent: LangGraph's types leave out some of its keys."""
    return dict(answer)


def rows(answers: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the objects of a list, as ``row`` does."""
    return [row(answer) for answer in answers]


def questions(values: Any) -> list[dict[str, Any]]:
    """Return what a run asks, from the values with which it stopped."""
    return values["__interrupt__"]


async def state_values(client: LangGraphClient, thread_id: str) -> dict[str, Any]:
    """Return the values of a thread's state."""
    values: Any = (await client.threads.get_state(thread_id))["values"]
    return values


async def new(client: LangGraphClient) -> str:
    """The id of a new thread."""
    thread_id: str = (await client.threads.create())["thread_id"]
    return thread_id


async def parts(stream: AsyncIterator[Any]) -> list[StreamPart]:
    return [part async for part in stream]


def names(stream: list[StreamPart]) -> list[str]:
    return [part.event for part in stream]


_WHEN = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}(\+\d\d:\d\d|Z)")


def is_time(text: Any) -> bool:
    """Whether it is a time as the API writes one: microseconds and an offset."""
    return isinstance(text, str) and bool(_WHEN.fullmatch(text)) and bool(datetime.fromisoformat(text))


def detail(answer: Any) -> str:
    """The text of a refusal; there is nothing else in it."""
    body: Mapping[str, Any] = answer.json()
    assert list(body) == ["detail"]
    assert isinstance(body["detail"], str)
    assert body["detail"]
    return body["detail"]


async def statuses(client: LangGraphClient, thread_id: str) -> list[str]:
    """Of the runs of a thread, the oldest first."""
    return [made["status"] for made in reversed(await client.runs.list(thread_id))]


async def rests(client: LangGraphClient, thread_id: str) -> None:
    """Wait until the second node of the slow graph is at it."""

    async def is_noted() -> bool:
        return "noted" in heard((await client.threads.get_state(thread_id))["values"])

    await eventually(is_noted)
