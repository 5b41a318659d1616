"""An OpenAI-compatible endpoint that answers the demo's prompts by a rule: a test knows each step's text.

A message names its topic, such as *topic-7*. The outline has three parts, and a paragraph a fixed number of
words that name its topic, its step and which call for the step it is.
"""

from __future__ import annotations

import json
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread
from typing import Any

OUTLINE = "1. One\n2. Two\n3. Three"
STEPS = ("outline", "paragraph 1", "paragraph 2", "paragraph 3")
WORDS = 12

Hold = Callable[[str, str, int, int], None]
"""Called before each word with its topic, its step, the number of the call for it, and the word's place."""


class Endpoint:
    """What was asked: the number of calls for each step, by topic."""

    def __init__(self, url: str, hold: Hold) -> None:
        self.url = url
        self.calls: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
        self._hold, self._lock = hold, Lock()

    @property
    def environment(self) -> dict[str, str]:
        """The variables with which the demo talks to it as to OpenAI."""
        return {"OPENAI_API_KEY": "-", "OPENAI_BASE_URL": f"{self.url}/v1", "NO_PROXY": "127.0.0.1"}

    def words(self, messages: list[dict[str, Any]]) -> Iterator[str]:
        """The words of the answer to a prompt, each when it is due."""
        text = "\n".join(str(message["content"]) for message in messages if message["role"] == "user")
        topic = re.findall(r"topic-\d+", text)[-1]
        asked = text.rpartition("\n")[2]
        title = re.search(r"(?:with|new): (One|Two|Three)\. Write one short paragraph\.$", asked)
        step = f"paragraph {('One', 'Two', 'Three').index(title[1]) + 1}" if title else "outline"
        with self._lock:
            self.calls[topic][step] += 1
            call = self.calls[topic][step]
        pieces = [OUTLINE] if step == "outline" else [f"{topic}/{step[-1]}/{call}/{n} " for n in range(WORDS)]
        for place, piece in enumerate(pieces):
            self._hold(topic, step, call, place)
            yield piece


@contextmanager
def endpoint(hold: Hold = lambda *_: time.sleep(0.02)) -> Iterator[Endpoint]:
    """An endpoint on this machine until the block ends."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.0"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            assert body["stream"]
            try:
                for word in here.words(body["messages"]):
                    self._tell({"delta": {"role": "assistant", "content": word}, "finish_reason": None})
                self._tell({"delta": {}, "finish_reason": "stop"})
                self.wfile.write(b"data: [DONE]\n\n")
            except ConnectionError:
                return  # the process that asked was killed

        def _tell(self, choice: dict[str, Any]) -> None:
            chunk = {
                "id": "c",
                "object": "chat.completion.chunk",
                "created": 0,
                "model": "scripted",
                "choices": [{"index": 0, **choice}],
            }
            self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    here = Endpoint(f"http://127.0.0.1:{server.server_address[1]}", hold)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield here
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
