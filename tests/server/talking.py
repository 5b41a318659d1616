"""The A2A protocol's own client, of one agent of a server, in both releases of the protocol."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
from a2a.client import ClientConfig, ClientFactory
from a2a.client.card_resolver import A2ACardResolver
from a2a.types import a2a_pb2 as types
from google.protobuf.json_format import MessageToDict
from google.protobuf.struct_pb2 import Value


class Talk:
    """A client of an agent, and what it receives, as plain data."""

    def __init__(self, client: Any) -> None:
        self.client = client

    async def events(self, request: types.SendMessageRequest) -> list[dict[str, Any]]:
        return [MessageToDict(one) async for one in self.client.send_message(request)]

    async def task(self, text: str = "", **more: Any) -> dict[str, Any]:
        """Send a message, and return the task that it is, once it rests."""
        (only,) = await self.events(said(text, **more))
        task: dict[str, Any] = only["task"]
        return task

    async def get(self, task_id: str) -> dict[str, Any]:
        return MessageToDict(await self.client.get_task(types.GetTaskRequest(id=task_id)))


@asynccontextmanager
async def talking(
    url: str, agent: str, *, user: str | None = None, version: str = "1.0", streaming: bool = False
) -> AsyncIterator[Talk]:
    """A client that finds the agent by its card."""
    headers = {} if user is None else {"Authorization": f"Bearer {user}"}
    async with httpx.AsyncClient(headers=headers, timeout=60, trust_env=False) as http:
        path = f"/.well-known/agent-card.json?assistant_id={agent}"
        card = await A2ACardResolver(http, url, path).get_agent_card()
        kept = [one for one in card.supported_interfaces if one.protocol_version == version]
        del card.supported_interfaces[:]
        card.supported_interfaces.extend(kept)
        factory = ClientFactory(ClientConfig(streaming=streaming, httpx_client=http))
        yield Talk(factory.create(card))


def said(
    text: str = "",
    *,
    data: Any = None,
    context: str = "",
    task: str = "",
    message_id: str | None = None,
    **more: Any,
) -> types.SendMessageRequest:
    """A message to an agent."""
    parts = [types.Part(text=text)] if text else []
    if data is not None:
        value = Value()
        from google.protobuf.json_format import ParseDict

        parts.append(types.Part(data=ParseDict(data, value)))
    message = types.Message(
        message_id=message_id or str(uuid.uuid4()),
        role=types.Role.ROLE_USER,
        context_id=context,
        task_id=task,
        parts=parts,
    )
    return types.SendMessageRequest(message=message, **more)


def text_of(task: dict[str, Any]) -> str:
    """The text of a task's result."""
    return "".join(part["text"] for one in task["artifacts"] for part in one["parts"])


def reassembled(events: list[dict[str, Any]]) -> dict[str, str]:
    """The texts of the artifacts that a stream has told, by their ids."""
    found: dict[str, str] = {}
    for event in events:
        if (update := event.get("artifactUpdate")) is not None:
            artifact = update["artifact"]
            text = "".join(part["text"] for part in artifact["parts"])
            before = found.get(artifact["artifactId"], "") if update.get("append") else ""
            found[artifact["artifactId"]] = before + text
    return found
