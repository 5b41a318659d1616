"""A provider over HTTP that refuses invalid lists of messages, as OpenAI and Anthropic document it.

Doubles from the package indexes answer any list. This one checks each request by the rules of
``tests.conversation.rules``, and refuses it with the provider's own status and form of error; the genuine
clients talk to it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

from langchain_core.language_models import BaseChatModel

from tests.conversation.rules import anthropic_faults, openai_faults

CLIENTS = ("openai", "anthropic")


class Provider:
    """What was asked for, and refused. ``calls`` returns the calls of tools, by name and arguments, to answer
    a request with; ``on_request`` is called with each."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.accepted = 0
        self.refused: list[list[str]] = []
        self.calls: Callable[[Mapping[str, Any]], list[tuple[str, dict[str, Any]]]] = lambda body: []
        self.on_request: Callable[[], None] = lambda: None
        self._ids = 0

    def client(self, name: str) -> BaseChatModel:
        """The genuine client of a provider, without retries."""
        given: dict[str, Any] = {"api_key": "-", "max_retries": 0, "timeout": 20}
        if name == "openai":
            from langchain_openai import ChatOpenAI

            return ChatOpenAI(model="gpt-5", base_url=f"{self.url}/v1", use_responses_api=False, **given)
        from langchain_anthropic import ChatAnthropic

        return ChatAnthropic(**given, model="claude-test", max_tokens=1000, base_url=self.url)  # type: ignore[call-arg]

    def answer(self, path: str, body: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
        """The status and the body of the answer to a request."""
        is_openai = path.endswith("/chat/completions")
        faults = openai_faults(body) if is_openai else anthropic_faults(body)
        if faults:
            self.refused.append(faults)
            error = {"type": "invalid_request_error", "message": "; ".join(faults)}
            return 400, {"error": error} if is_openai else {"type": "error", "error": error}
        self.accepted += 1
        self.on_request()
        calls = [(f"call_{self._next()}", *call) for call in self.calls(body)]
        return 200, _openai_answer(calls) if is_openai else _anthropic_answer(calls)

    def _next(self) -> int:
        self._ids += 1
        return self._ids


def _openai_answer(calls: list[tuple[str, str, dict[str, Any]]]) -> dict[str, Any]:
    made = [
        {"id": call_id, "type": "function", "function": {"name": name, "arguments": json.dumps(args)}}
        for call_id, name, args in calls
    ]
    message: dict[str, Any] = {"role": "assistant", "content": None if made else "It is noted."}
    if made:
        message["tool_calls"] = made
    choice = {"index": 0, "finish_reason": "tool_calls" if made else "stop", "message": message}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    return {
        "id": "c",
        "object": "chat.completion",
        "created": 0,
        "model": "gpt-5",
        "choices": [choice],
        "usage": usage,
    }


def _anthropic_answer(calls: list[tuple[str, str, dict[str, Any]]]) -> dict[str, Any]:
    made = [{"type": "tool_use", "id": call_id, "name": name, "input": args} for call_id, name, args in calls]
    return {
        "id": "m",
        "type": "message",
        "role": "assistant",
        "model": "claude-test",
        "content": made or [{"type": "text", "text": "It is noted."}],
        "stop_reason": "tool_use" if made else "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 1, "output_tokens": 1},
    }


@contextmanager
def providing() -> Iterator[Provider]:
    """A provider that listens on this machine."""

    class Handler(BaseHTTPRequestHandler):
        # One connection for each request: clients keep theirs beyond the event loop that they belong to.
        protocol_version = "HTTP/1.0"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            status, answer = provider.answer(self.path.partition("?")[0], body)
            data = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    provider = Provider(f"http://127.0.0.1:{server.server_address[1]}")
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield provider
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
