"""The application beside Aegra's graphs: its routes, and the model that the graphs call over HTTP."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

_PAUSE_S = 0.1
_LENGTHY = ("essay", "story", "slowly", "joke")
_WITH_TOOL = ("weather", "forecast", "search")
_OF_USER = (
    "identity", "display_name", "is_authenticated", "permissions",
    "role", "subscription_tier", "team_id", "email",
)  # fmt: skip

app = FastAPI()


@app.get("/custom/whoami")
async def whoami(request: Request) -> dict[str, Any]:
    """The user as the server's own authentication made it known."""
    return {name: getattr(request.user, name, None) for name in _OF_USER}


@app.get("/custom/public")
async def public() -> dict[str, str]:
    return {"message": "public"}


@app.get("/custom/protected")
async def show_user(request: Request) -> dict[str, str]:
    return {"message": "protected", "user": request.user.identity}


@app.post("/model/v1/chat/completions")
async def completions(request: Request) -> Response:
    """Answer as OpenAI's chat completions do: lengthy questions at leisure, some by asking for a tool."""
    asked = await request.json()
    words = _words(asked)
    made: dict[str, Any] = {"id": f"chatcmpl-{uuid.uuid4()}", "created": 0, "model": asked["model"]}
    if asked.get("stream"):
        return StreamingResponse(_chunks(asked, words, made), media_type="text/event-stream")
    if words is None:
        message, reason = {"role": "assistant", "content": None, "tool_calls": [_call(asked)]}, "tool_calls"
    else:
        await asyncio.sleep(_pause(asked) * len(words))
        message, reason = {"role": "assistant", "content": "".join(words)}, "stop"
    choice = {"index": 0, "message": message, "finish_reason": reason}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    return JSONResponse({**made, "object": "chat.completion", "choices": [choice], "usage": usage})


async def _chunks(asked: dict[str, Any], words: list[str] | None, made: dict[str, Any]) -> AsyncIterator[str]:
    def chunk(delta: dict[str, Any], reason: str | None = None) -> str:
        choice = {"index": 0, "delta": delta, "finish_reason": reason}
        whole = {**made, "object": "chat.completion.chunk", "choices": [choice]}
        return f"data: {json.dumps(whole)}\n\n"

    yield chunk({"role": "assistant", "content": ""})
    if words is None:
        yield chunk({"tool_calls": [{"index": 0, **_call(asked)}]})
        yield chunk({}, "tool_calls")
    else:
        for word in words:
            yield chunk({"content": word})
            await asyncio.sleep(_pause(asked))
        yield chunk({}, "stop")
    yield "data: [DONE]\n\n"


def _words(asked: dict[str, Any]) -> list[str] | None:
    """What is answered, word by word; nothing where a tool is called."""
    last = asked["messages"][-1]
    if asked.get("tools") and last["role"] == "user" and _has(last, _WITH_TOOL):
        return None
    if any(m["role"] in ("system", "developer") and _has(m, ("french",)) for m in asked["messages"]):
        return ["Bonjour", " !"]
    return [f"word{number} " for number in range(50 if _has(last, _LENGTHY) else 4)]


def _call(asked: dict[str, Any]) -> dict[str, Any]:
    name = asked["tools"][0]["function"]["name"]
    function = {"name": name, "arguments": json.dumps({"query": "what was asked"})}
    return {"id": f"call_{uuid.uuid4().hex}", "type": "function", "function": function}


def _pause(asked: dict[str, Any]) -> float:
    return _PAUSE_S if _has(asked["messages"][-1], _LENGTHY) else 0.0


def _has(message: dict[str, Any], words: tuple[str, ...]) -> bool:
    text = str(message["content"]).lower()
    return message["role"] != "tool" and any(word in text for word in words)
