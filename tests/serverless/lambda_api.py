"""Lambda's Runtime API on this machine, for the genuine runtime client: containers that start cold, freeze
after each answer, are thawed for the next call, and are killed when a call takes too long."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote

ROOT = Path(__file__).parents[2]
START_S = 60.0


class TimedOut(Exception):
    """The call took longer than the function may run, and its container was killed."""


class Died(Exception):
    """The container ended during the call."""


class Context:
    """The context of a call that has so many seconds left."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def get_remaining_time_in_millis(self) -> int:
        return round(self._seconds * 1000)


class LambdaContainer:
    """One container of a function, started when it is first called."""

    def __init__(
        self, handler: str, variables: Mapping[str, str], *, timeout: float = 60.0, log: Path | None = None
    ) -> None:
        self._handler, self._variables, self.timeout, self._log = handler, variables, timeout, log
        self._events: queue.Queue[tuple[str, Any, float]] = queue.Queue()
        self._answers: dict[str, tuple[str, Any]] = {}
        self._changed = threading.Condition()
        self._is_waiting = False
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._requests())
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.process: subprocess.Popen[bytes] | None = None
        self.starts = 0

    def _requests(self) -> type[BaseHTTPRequestHandler]:
        api = self

        class Requests(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
                """Print nothing."""

            def do_GET(self) -> None:
                with api._changed:
                    api._is_waiting = True
                    api._changed.notify_all()
                request_id, event, deadline = api._events.get()
                body = json.dumps(event).encode()
                self.send_response(200)
                self.send_header("Lambda-Runtime-Aws-Request-Id", request_id)
                self.send_header("Lambda-Runtime-Deadline-Ms", str(int(deadline * 1000)))
                self.send_header("Lambda-Runtime-Invoked-Function-Arn", "arn:aws:lambda:x:0:function:f")
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                self.send_response(202)
                self.send_header("Content-Length", "0")
                self.end_headers()
                *_, request_id, kind = self.path.split("/")
                with api._changed:
                    api._answers[request_id] = (kind, json.loads(body or b"null"))
                    api._changed.notify_all()

        return Requests

    def start(self) -> None:
        """Start the process and wait until it asks for its first event."""
        self._is_waiting = False
        self.starts += 1
        environ = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "AWS_LAMBDA_RUNTIME_API": f"127.0.0.1:{self._server.server_port}",
            "AWS_LAMBDA_FUNCTION_NAME": "f",
            "AWS_LAMBDA_FUNCTION_VERSION": "1",
            "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": "512",
            "AWS_LAMBDA_LOG_GROUP_NAME": "g",
            "AWS_LAMBDA_LOG_STREAM_NAME": "s",
            **self._variables,
        }
        with (self._log or Path(os.devnull)).open("ab") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "awslambdaric", self._handler],
                env=environ,
                stdout=out,
                stderr=out,
                cwd=ROOT,
            )
        with self._changed:
            assert self._changed.wait_for(lambda: self._is_waiting, START_S), "the container did not start"

    def call(self, event: Any) -> Any:
        """Return the function's answer to an event. The container is frozen before and after."""
        if self.process is None or self.process.poll() is not None:
            self.start()
        process = self.process
        assert process is not None
        process.send_signal(signal.SIGCONT)
        request_id = str(uuid.uuid4())
        until = time.time() + self.timeout
        with self._changed:
            self._is_waiting = False
        self._events.put((request_id, event, until))
        with self._changed:
            while request_id not in self._answers:
                self._changed.wait(0.05)
                if process.poll() is not None:
                    self._recycle()
                    raise Died
                if time.time() > until:
                    self.kill()
                    raise TimedOut
            kind, answer = self._answers.pop(request_id)
            self._changed.wait_for(lambda: self._is_waiting, 10)
        process.send_signal(signal.SIGSTOP)
        if kind == "error":
            raise RuntimeError(answer["errorType"] + ": " + answer["errorMessage"])
        return answer

    def kill(self) -> None:
        """End the container at once."""
        if self.process is not None:
            self.process.kill()
            self._recycle()

    def _recycle(self) -> None:
        if self.process is not None:
            self.process.wait()
            self.process = None

    def close(self) -> None:
        self.kill()
        self._server.shutdown()
        self._server.server_close()


def http_event(method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None) -> Any:
    """An event of a function URL, with the path as the client has encoded it."""
    return {
        "version": "2.0",
        "routeKey": "$default",
        "rawPath": path,
        "rawQueryString": "",
        "headers": {"host": "f.lambda-url.x.on.aws", "content-type": "application/json", **(headers or {})},
        "requestContext": {
            "http": {"method": method, "path": path, "protocol": "HTTP/1.1", "sourceIp": "127.0.0.1"},
            "stage": "$default",
            "domainName": "f.lambda-url.x.on.aws",
            "time": "01/Jan/2026:00:00:00 +0000",
        },
        "body": None if body is None else json.dumps(body),
        "isBase64Encoded": False,
    }


def http_api_event(method: str, path: str, *given: Any) -> Any:
    """The same of an HTTP API with payload format 2.0, which decodes the path."""
    event = http_event(method, unquote(path), *given)
    event["requestContext"]["domainName"] = "x.execute-api.test"
    return event


def http_api_event_v1(method: str, path: str, *given: Any) -> Any:
    """The same with payload format 1.0."""
    event = rest_event(method, path, *given)
    event["path"] = event["requestContext"]["path"] = unquote(event["path"])
    return {**event, "version": "1.0"}


def rest_event(method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None) -> Any:
    """The same as a REST API's proxy integration sends it: payload format 1.0, without a version."""
    all_headers = {"Content-Type": "application/json", "Host": "x.execute-api.test", **(headers or {})}
    where, _, query = path.partition("?")
    asked = parse_qs(query, keep_blank_values=True)
    return {
        "resource": "/{proxy+}",
        "path": where,
        "httpMethod": method,
        "headers": all_headers,
        "multiValueHeaders": {name: [value] for name, value in all_headers.items()},
        "queryStringParameters": {name: values[-1] for name, values in asked.items()} or None,
        "multiValueQueryStringParameters": asked or None,
        "pathParameters": {"proxy": where.removeprefix("/")},
        "stageVariables": None,
        "requestContext": {
            "resourcePath": "/{proxy+}",
            "httpMethod": method,
            "path": f"/prod{where}",
            "stage": "prod",
            "requestId": str(uuid.uuid4()),
            "identity": {"sourceIp": "192.0.2.1", "userAgent": "test"},
            "apiId": "x",
        },
        "body": None if body is None else json.dumps(body),
        "isBase64Encoded": False,
    }


EVENTS: Mapping[str, Callable[..., Any]] = {
    "a function URL": http_event,
    "an HTTP API": http_api_event,
    "a REST API": rest_event,
    "an HTTP API of format 1.0": http_api_event_v1,
}
SCHEDULE = {"version": "0", "source": "aws.events", "detail-type": "Scheduled Event", "detail": {}}
