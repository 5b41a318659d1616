"""One request of the Model Context Protocol: tools are listed, and a call is a durable run.

There are no sessions: each request is answered by a protocol server of its own, for its authenticated user.
A call is a run on a thread of its own, as ``POST /runs/wait`` makes one: it is stored before it begins,
another server continues it if this one ends, and the thread is removed after it. A client that closes the
connection cancels the call; it could not receive the result any more.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match
from mcp.server.lowlevel.server import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    PaginatedRequestParams,
    TextContent,
    Tool,
)
from pydantic import ValidationError
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from perdure.errors import PerdureError
from perdure.model.runs.messages import FAILED, WAITING
from perdure.model.runs.waits import read_waits
from perdure.runtime import Standing
from perdure.runtime.json_encoding import to_json
from perdure.server import error_handlers, responses
from perdure.server.auth.identity import Refusal
from perdure.server.auth.reserved_names import with_verified
from perdure.server.mcp.replies import reply_of
from perdure.server.mcp.tools import assistant_of, find_visible_assistants, input_of, name_tools
from perdure.server.requests import NewRun
from perdure.server.resources import Caller
from perdure.server.runs.run_creation import AcceptedRun, submit
from perdure.server.runs.run_request_headers import without_terms
from perdure.server.runs.run_values import values_of
from perdure.server.runs.temporary_threads import remove_after_run, remove_thread, wait_for_end
from perdure.server.state_snapshots import list_asked
from perdure.server.validation_faults import fault_text

_PAGE = 100
_log = logging.getLogger("perdure.server")

# These loggers write the beginning and the end of each exchange at info level.
for _name in ("mcp.server.streamable_http_manager", "mcp.server.streamable_http"):
    logging.getLogger(_name).setLevel(logging.WARNING)


class McpResponse(Response):
    """Response to one request of the protocol, for the authenticated user of the request."""

    def __init__(self, caller: Caller, request: Request, version: str) -> None:
        super().__init__()
        self._caller, self._request, self._version = caller, request, version

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = _Exchange(self._caller, self._request.headers)
        server: Server[Any] = Server(
            "perdure",
            version=self._version,
            instructions="Each tool is an agent. A call is one independent run of it.",
            on_list_tools=exchange.list_tools,
            on_call_tool=exchange.call_tool,
        )
        most = self._caller.host.limits.body_bytes
        manager = StreamableHTTPSessionManager(server, stateless=True, max_request_body_size=most)
        async with manager.run():
            await manager.handle_request(scope, receive, send)


class _Exchange:
    """The methods of the protocol for a user."""

    def __init__(self, caller: Caller, headers: Headers) -> None:
        self._caller, self._headers = caller, headers

    async def list_tools(self, _: Any, params: PaginatedRequestParams | None) -> ListToolsResult:
        """Return a page of the tools that the user may call."""
        start = 0
        if params is not None and params.cursor is not None:
            start = _parse_cursor(params.cursor)
        try:
            named = list(name_tools(self._caller, await find_visible_assistants(self._caller)).items())
            page = named[start : start + _PAGE]
            inputs = {
                graph_id: await input_of(self._caller, graph_id)
                for graph_id in {assistant.graph_id for _, assistant in page}
            }
        except (Refusal, PerdureError) as error:
            raise _protocol_error(error) from error
        tools = [
            Tool(
                name=name,
                title=assistant.name,
                description=assistant.description or f"Runs the agent {assistant.name!r}.",
                input_schema=inputs[assistant.graph_id].schema,
            )
            for name, assistant in page
        ]
        following = None
        if start + _PAGE < len(named):
            following = str(start + _PAGE)
        return ListToolsResult(tools=tools, next_cursor=following)

    async def call_tool(self, _: Any, params: CallToolRequestParams) -> CallToolResult:
        """Run the agent of a tool and return its reply. The error of a run that fails, or of input that the
        agent does not take, is returned as a result, so that a model can read it and correct its call."""
        try:
            return await self._call(params.name, params.arguments or {})
        except ValidationError as error:
            return _make_failure_result("InvalidArguments", fault_text(error.errors()[0]))
        except Refusal as refusal:
            if refusal.may_be_repeated:
                raise _protocol_error(refusal) from refusal
            return _make_failure_result("Refused", refusal.detail)
        except PerdureError as error:
            if error_handlers.status_of(error) >= 500:
                _log.warning("a call of a tool failed: %s", type(error).__name__)
                raise _protocol_error(error) from error
            return _make_failure_result(type(error).__name__, error_handlers.make_public_message(error))

    async def _call(self, name: str, arguments: Mapping[str, Any]) -> CallToolResult:
        caller = self._caller
        assistant = assistant_of(caller, await find_visible_assistants(caller), name)
        if assistant is None:
            raise MCPError(INVALID_PARAMS, f"There is no tool {name!r}; tools/list returns those there are.")
        tool_input = await input_of(caller, assistant.graph_id)
        fault = best_match(Draft202012Validator(tool_input.schema).iter_errors(arguments))
        if fault is not None:
            place = "".join(f"[{part!r}]" for part in fault.absolute_path) or "the arguments"
            return _make_failure_result("InvalidArguments", f"{place}: {_without_values(fault)}")
        # As everywhere, what the arguments state about the user is replaced by what is verified.
        verified = with_verified(caller.user, arguments)
        new = NewRun(assistant_id=assistant.assistant_id, input=tool_input.of(verified))
        with caller.host.throttle.count_stream(caller.user):
            with caller.host.throttle.count_arrival():
                accepted = await submit(
                    caller, without_terms(self._headers), None, new, modes=(), is_kept=False
                )
            try:
                standing = await wait_for_end(caller, accepted.thread_id, accepted.run_id)
                result = await self._make_result(accepted, standing)
            except asyncio.CancelledError:
                if not caller.host.closing.is_set():
                    caller.host.run_in_background(_abandon(caller, accepted))
                raise
        if standing.run is not None and read_waits(standing.run.note):
            # The run waits for a deadline or a signal, after which no client could receive its result.
            await caller.threads.remove(accepted.thread_id)
        else:
            await remove_thread(caller, standing, accepted.thread_id)
        return result

    async def _make_result(self, accepted: AcceptedRun, standing: Standing) -> CallToolResult:
        run = standing.run
        if run is None or responses.run_status(standing) in ("interrupted", ""):
            return _make_failure_result(responses.CANCELLED, "the run was cancelled before it ended")
        if run.state == FAILED:
            error = responses.run_error(run)
            return _make_failure_result(error["error"], error["message"])
        values = json.loads(to_json(await values_of(self._caller.runtime, accepted.thread_id, run)))
        if run.state == WAITING:
            asked = list_asked(values)
            waits = [wait for wait in read_waits(run.note).values() if wait.kind != "question"]
            if waits and not asked:
                text = " ".join(map(responses.wait_text, waits))
                return _make_failure_result(
                    "Asleep",
                    f"{text} A call of a tool does not wait for that, and was ended. Talk to the agent over "
                    "A2A or the API of threads",
                )
            questions = json.dumps([question.get("value") for question in asked], ensure_ascii=False)
            return _make_failure_result(
                "Interrupted",
                f"the agent waits for an answer, which a call of a tool cannot give: {questions}. Call it "
                "with what it asks for, or talk to it over A2A or the API of threads",
            )
        content = reply_of(values) or [TextContent(text=json.dumps(values, ensure_ascii=False))]
        if not isinstance(values, dict):
            values = {"output": values}
        return CallToolResult(content=content, structured_content=values)


async def _abandon(caller: Caller, accepted: AcceptedRun) -> None:
    """Cancel the run of a call whose client has left, and remove its thread."""
    await caller.runtime.cancel(accepted.thread_id, accepted.run_id)
    await remove_after_run(caller, accepted)


def _without_values(fault: Any) -> str:
    """Describe the fault without the value, which may be long or secret."""
    match fault.validator:
        case "type":
            kinds = fault.validator_value
            return f"has to be of type {kinds if isinstance(kinds, str) else ' or '.join(kinds)}"
        case "enum":
            return f"has to be one of {fault.validator_value}"
        case "required":
            lacking = [name for name in fault.validator_value if name not in fault.instance]
            return f"lacks {', '.join(map(repr, lacking))}"
        case rule:
            return f"does not fit the schema's rule {rule!r}"


def _make_failure_result(kind: str, message: str) -> CallToolResult:
    return CallToolResult(
        content=[TextContent(text=f"{kind}: {message}")],
        structured_content={"error": kind, "message": message},
        is_error=True,
    )


def _protocol_error(error: Refusal | PerdureError) -> MCPError:
    code = INTERNAL_ERROR
    if isinstance(error, Refusal):
        text, kind, status = error.detail, "Refused", error.status
        if status < 500:
            code = INVALID_PARAMS
    else:
        text, kind = error_handlers.make_public_message(error), type(error).__name__
        status = error_handlers.status_of(error)
    return MCPError(code, text, {"error": kind, "status": status})


def _parse_cursor(cursor: str) -> int:
    if not cursor.isdecimal() or len(cursor) > 9:
        raise MCPError(
            INVALID_PARAMS, f"{cursor[:20]!r} is not a cursor; send the nextCursor of the last page"
        )
    return int(cursor)
