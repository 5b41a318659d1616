"""The methods of the A2A protocol for one assistant and one user, over durable runs.

No part of a task exists in this process alone. A message becomes a run, which is stored before it begins; the
run's state is read from its records, and its stream can be followed from the beginning by another connection
and at another server. A client that disconnects does not end its task.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from functools import partial
from typing import Any, NoReturn

from a2a.server.context import ServerCallContext
from a2a.server.request_handlers.request_handler import RequestHandler, validate_request_params
from a2a.types import a2a_pb2 as types
from a2a.utils.errors import (
    A2AError,
    ExtendedAgentCardNotConfiguredError,
    InternalError,
    InvalidParamsError,
    PushNotificationNotSupportedError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnsupportedOperationError,
)
from a2a.utils.proto_utils import parse_lenient
from google.protobuf.json_format import MessageToDict
from pydantic import ValidationError
from starlette.datastructures import Headers

from perdure.errors import NotFound, PerdureError, SubscriberTooSlow, Unavailable
from perdure.langgraph.reading.open_interrupts import is_by_name
from perdure.runtime import Standing
from perdure.runtime.options import StreamMode
from perdure.server import error_handlers
from perdure.server.a2a import push
from perdure.server.a2a.contexts import submit_in, thread_of
from perdure.server.a2a.parts import answer_of, find_unique_id, input_of, text_of
from perdure.server.a2a.tasks import (
    A2A,
    INPUT_REQUIRED,
    TERMINAL,
    WORKING,
    DurableTask,
    describe_task,
    find,
    list_tasks,
    protocol_of,
    read_answer,
    split_task_id,
    task_id_of,
)
from perdure.server.assistants import Assistant
from perdure.server.auth.identity import Refusal
from perdure.server.requests import NewRun
from perdure.server.resources import Caller
from perdure.server.runs.outbound_policy import Unreachable
from perdure.server.runs.run_creation import AcceptedRun, submit
from perdure.server.runs.run_request_headers import without_terms
from perdure.server.runs.temporary_threads import wait_for_end
from perdure.server.streaming import streams
from perdure.server.streaming.reading_rights import RunRights
from perdure.server.thread_ids import thread_id_of
from perdure.server.validation_faults import fault_text

_MODES: tuple[StreamMode, ...] = ("messages-tuple",)
_NOT_METADATA = {"debounce_ms", "multitask_strategy"}
"""Names that would change how a run is accepted; a task is always a run of its own."""
_PAGE = 50
_ASLEEP_S = (0.5, 5.0)
"""Shortest and longest time between two reads of a task that sleeps, in seconds."""
_log = logging.getLogger("perdure.server")

A2AEvent = types.Task | types.TaskStatusUpdateEvent | types.TaskArtifactUpdateEvent
Events = AsyncGenerator[A2AEvent, None]


@asynccontextmanager
async def translate_errors() -> AsyncIterator[None]:
    """Raise errors of the block as errors of the protocol, with the name of the error in its data."""
    try:
        yield
    except (A2AError, GeneratorExit):
        raise
    except Refusal as refusal:
        data = {"error": "Refused"}
        if refusal.may_be_repeated:
            raise InternalError(refusal.detail, data) from refusal
        raise InvalidParamsError(refusal.detail, data) from refusal
    except ValidationError as error:
        raise InvalidParamsError(fault_text(error.errors()[0])) from error
    except PerdureError as error:
        status, data = error_handlers.status_of(error), {"error": type(error).__name__}
        text = error_handlers.make_public_message(error)
        if status >= 500 or status == 429:
            _log.warning("a method of A2A failed: %s", type(error).__name__)
            raise InternalError(text, data) from error
        raise InvalidParamsError(text, data) from error
    except ValueError as error:
        raise InvalidParamsError(str(error)) from error
    except Exception as error:
        # The text may contain users' data.
        _log.exception("a method of A2A failed: %s", type(error).__name__, exc_info=False)
        raise InternalError(f"The server failed ({type(error).__name__}).") from error


class DurableTasks(RequestHandler):
    """The tasks of an assistant, for the authenticated user of a request."""

    def __init__(
        self,
        caller: Caller,
        headers: Headers,
        assistant: Assistant,
        rights: RunRights,
        *,
        needs_context: bool = False,
        shares_contexts: bool = False,
    ) -> None:
        """Bind to a user and an assistant. ``rights`` are the rights of the user to the task that a request
        waits for or streams. With ``needs_context`` a message without a ``contextId`` is refused; with
        ``shares_contexts`` all agents use the one thread of a context."""
        self._caller, self._headers, self._assistant = caller, headers, assistant
        self._rights = rights
        self._needs_context, self._shares_contexts = needs_context, shares_contexts

    def _count_stream(self) -> AbstractContextManager[None]:
        return self._caller.host.throttle.count_stream(self._caller.user)

    # Messages

    @validate_request_params
    async def on_message_send(
        self, params: types.SendMessageRequest, context: ServerCallContext
    ) -> types.Task | types.Message:
        """Accept a message. Return its task once it has ended or asks a question, or at once if the client
        does not wait. If the server stops first, return the task as it is; it continues elsewhere."""
        does_wait = not params.configuration.return_immediately
        async with translate_errors():
            with self._count_stream() if does_wait else nullcontext():
                task = await self._accept(params, context)
                if does_wait:
                    task = await self._wait_for_end(task)
            return await self._to_task(task, params.configuration)

    @validate_request_params
    async def on_message_send_stream(
        self, params: types.SendMessageRequest, context: ServerCallContext
    ) -> Events:
        """Accept a message and stream its task: the task, its reply while it is written, its end."""
        async with translate_errors():
            with self._count_stream():
                task = await self._accept(params, context)
                async for event in self._follow_task(task):
                    yield event

    @validate_request_params
    async def on_subscribe_to_task(
        self, params: types.SubscribeToTaskRequest, context: ServerCallContext
    ) -> Events:
        """Stream a task that has not ended, with its reply from the beginning."""
        async with translate_errors():
            task = await self._find_task(params.id, "read")
            if task.state in TERMINAL:
                raise UnsupportedOperationError(f"task {task.id!r} has ended; get it with GetTask")
            with self._count_stream():
                async for event in self._follow_task(task):
                    yield event

    # Tasks

    @validate_request_params
    async def on_get_task(self, params: types.GetTaskRequest, context: ServerCallContext) -> types.Task:
        """Return a task as it is now."""
        async with translate_errors():
            return await self._to_task(await self._find_task(params.id, "read"), params)

    @validate_request_params
    async def on_list_tasks(
        self, params: types.ListTasksRequest, context: ServerCallContext
    ) -> types.ListTasksResponse:
        """Return tasks of a context, newest first."""
        async with translate_errors():
            if not params.context_id:
                raise InvalidParamsError("tasks are listed by their context; send its contextId")
            before, size = None, min(params.page_size or _PAGE, 100)
            if token := params.page_token:
                if not token.isdecimal() or len(token) >= 18:
                    raise InvalidParamsError("pageToken is the nextPageToken of the page before")
                before = int(token)
            if size < 1:
                raise InvalidParamsError("pageSize is from 1 to 100")
            found, following = await self._list_context_tasks(params.context_id, size, before)
            wanted = None
            if params.status:
                wanted = types.TaskState.Name(params.status)
            tasks = [
                await self._to_task(task, params)
                for task in found
                if task.assistant_id == self._assistant.assistant_id and wanted in (None, task.state)
            ]
            return types.ListTasksResponse(
                tasks=tasks, page_size=size, total_size=len(tasks), next_page_token=str(following or "")
            )

    async def _list_context_tasks(
        self, context_id: str, size: int, before: int | None
    ) -> tuple[Sequence[DurableTask], int | None]:
        """Return a page of a context's tasks; it is empty if the user cannot see the context."""
        thread_id = thread_id_of(context_id)
        if not self._shares_contexts:
            thread_id = await thread_of(self._caller, self._assistant.assistant_id, context_id)
        try:
            await self._caller.authorize_thread(thread_id, "read")
        except NotFound:
            return (), None
        return await list_tasks(self._caller.runtime, thread_id, size, before)

    @validate_request_params
    async def on_cancel_task(self, params: types.CancelTaskRequest, context: ServerCallContext) -> types.Task:
        """Cancel a task and return it."""
        async with translate_errors():
            task = await self._find_task(params.id, "update", action="interrupt")
            if task.state == INPUT_REQUIRED or task.is_asleep:
                task = await self._end_without_answer(task, context)
            elif task.state in TERMINAL or not await self._caller.runtime.cancel(task.thread_id, task.run_id):
                raise TaskNotCancelableError(f"task {task.id!r} has ended; there is nothing to cancel")
            return await self._to_task(await self._wait_for_end(task), None)

    # Push notifications

    @validate_request_params
    async def on_create_task_push_notification_config(
        self, params: types.TaskPushNotificationConfig, context: ServerCallContext
    ) -> types.TaskPushNotificationConfig:
        """Add a receiver to a task that has not ended."""
        async with translate_errors():
            task = await self._find_task(params.task_id, "update")
            config = self._make_receiver(params, is_with_message=False)
            await push.put(self._caller.runtime, task, config)
            # Read the task after the receiver is stored: if it has not ended by now, the receiver will be
            # notified of its end.
            now = await self._find_task(task.id, "update")
            if now.state in TERMINAL:
                await push.delete(self._caller.runtime, task, config["id"])
                raise UnsupportedOperationError(f"task {task.id!r} has ended; nothing more is sent about it")
            return _make_push_config(task, config)

    @validate_request_params
    async def on_get_task_push_notification_config(
        self, params: types.GetTaskPushNotificationConfigRequest, context: ServerCallContext
    ) -> types.TaskPushNotificationConfig:
        """Return a receiver of a task."""
        async with translate_errors():
            task = await self._find_task(params.task_id, "read")
            for config in await push.read_configs(self._caller.runtime, task):
                if config["id"] == params.id:
                    return _make_push_config(task, config)
            raise TaskNotFoundError(f"task {task.id!r} has no push notification config {params.id!r}")

    @validate_request_params
    async def on_list_task_push_notification_configs(
        self, params: types.ListTaskPushNotificationConfigsRequest, context: ServerCallContext
    ) -> types.ListTaskPushNotificationConfigsResponse:
        """Return the receivers of a task."""
        async with translate_errors():
            task = await self._find_task(params.task_id, "read")
            found = await push.read_configs(self._caller.runtime, task)
            shown = [_make_push_config(task, config) for config in found]
            return types.ListTaskPushNotificationConfigsResponse(configs=shown)

    @validate_request_params
    async def on_delete_task_push_notification_config(
        self, params: types.DeleteTaskPushNotificationConfigRequest, context: ServerCallContext
    ) -> None:
        """Remove a receiver of a task."""
        async with translate_errors():
            task = await self._find_task(params.task_id, "update")
            await push.delete(self._caller.runtime, task, params.id)

    async def on_get_extended_agent_card(
        self, params: types.GetExtendedAgentCardRequest, context: ServerCallContext
    ) -> NoReturn:
        """Raise an error: the only card is the one at ``/.well-known``."""
        raise ExtendedAgentCardNotConfiguredError("the agent card has everything; there is no extended one")

    # Steps

    async def _accept(self, params: types.SendMessageRequest, context: ServerCallContext) -> DurableTask:
        """Store a message as a run, and return its task. For a message that was sent before, return the task
        that it has already."""
        _read_history_length(params.configuration)
        message = MessageToDict(params.message)
        protocol: dict[str, Any] = {
            "name": A2A,
            "version": _find_version(context),
            "message": params.message.message_id,
        }
        if params.configuration.HasField("task_push_notification_config"):
            given = params.configuration.task_push_notification_config
            protocol["push"] = [self._make_receiver(given, is_with_message=True)]
        metadata = {**MessageToDict(params.metadata), **MessageToDict(params.message.metadata)}
        fields: dict[str, Any] = {
            "assistant_id": self._assistant.assistant_id,
            "metadata": {name: value for name, value in metadata.items() if name not in _NOT_METADATA},
            "if_not_exists": "create",
            "on_completion": "keep",
            "stream_resumable": True,
            "multitask_strategy": "enqueue",
        }
        context_id = params.message.context_id or None
        if context_id is not None:
            thread_id_of(context_id)
        thread_id = interrupt_id = None
        if params.message.task_id:
            answer = answer_of(self._caller.user, message)
            task = await self._find_answered_task(params.message.task_id, context_id)
            if task.state != INPUT_REQUIRED and _find_earlier_answer(task, message) is None:
                # A copy of the message may have been accepted while the task was read.
                task = await self._find_answered_task(params.message.task_id, context_id)
            if (same := _find_earlier_answer(task, message)) is not None:
                if read_answer(same) != answer:
                    raise InvalidParamsError("this messageId was used for another answer; send a new one")
                return task
            self._require_waiting(task)
            fields |= {"command": {"resume": answer}}
            if not is_by_name(answer):
                interrupt_id = task.question
            protocol["task"] = task.first_run_id
            thread_id = task.thread_id
        else:
            if context_id is None and self._needs_context:
                raise InvalidParamsError(
                    "contextId is missing; name the conversation that the message is for"
                )
            takes_messages = await self._takes_messages()
            fields |= {"input": input_of(self._caller.user, message, takes_messages=takes_messages)}

        async def submit_on(thread_id: str | None, *, is_exclusive: bool = False) -> AcceptedRun:
            with self._caller.host.throttle.count_arrival():
                return await submit(
                    self._caller,
                    self._run_headers(find_unique_id(message)),
                    thread_id,
                    NewRun.model_validate(fields),
                    modes=_MODES,
                    is_kept=True,
                    interrupt_id=interrupt_id,
                    protocol=protocol,
                    is_exclusive=is_exclusive,
                )

        if thread_id is not None or context_id is None or self._shares_contexts:
            accepted = await submit_on(thread_id or context_id)
        else:
            submit_exclusively = partial(submit_on, is_exclusive=True)
            accepted = await submit_in(
                self._caller, self._assistant.assistant_id, context_id, submit_exclusively
            )
        found = await find(self._caller.runtime, accepted.thread_id, protocol.get("task", accepted.run_id))
        if found is None:
            raise self._no_task_error(task_id_of(accepted.thread_id, accepted.run_id))
        return found

    async def _find_answered_task(self, task_id: str, context_id: str | None) -> DurableTask:
        """Return the task whose question a message answers."""
        task = await self._find_task(task_id, "update")
        if context_id not in (None, task.context_id):
            raise InvalidParamsError(f"task {task_id!r} belongs to another context; leave contextId out")
        return task

    def _require_waiting(self, task: DurableTask) -> None:
        """Raise unless a task waits for an answer."""
        if task.state in TERMINAL:
            raise UnsupportedOperationError(
                f"task {task.id!r} has ended; send the message to its contextId without a taskId"
            )
        if task.state != INPUT_REQUIRED:
            raise UnsupportedOperationError(
                f"task {task.id!r} asks nothing now; wait for it, or send the message without a taskId: it "
                "is a task of its own, which begins after this one"
            )

    async def _end_without_answer(self, task: DurableTask, context: ServerCallContext) -> DurableTask:
        """End a task that waits for an answer, without one."""
        new = NewRun(
            assistant_id=self._assistant.assistant_id,
            command={"goto": "__end__"},  # type: ignore[arg-type]
            multitask_strategy="enqueue",
        )
        protocol = {"name": A2A, "version": _find_version(context), "task": task.first_run_id, "ends": True}
        headers = self._run_headers(None)
        await submit(self._caller, headers, task.thread_id, new, modes=(), is_kept=False, protocol=protocol)
        return await self._find_task(task.id, "read")

    async def _find_task(self, task_id: str, to: str, **value: Any) -> DurableTask:
        """Return a task of the assistant, if the user may perform an action on its context."""
        try:
            thread_id, run_id = split_task_id(task_id)
            await self._caller.authorize_thread(thread_id_of(thread_id), to, **value)
            if to == "read":
                self._rights.note_readable(thread_id)
        except ValueError as error:
            raise TaskNotFoundError(f"there is no task {task_id!r}: {error}") from error
        except (NotFound, Refusal) as error:
            raise self._no_task_error(task_id) from error
        task = await find(self._caller.runtime, thread_id, run_id)
        if task is None or task.assistant_id != self._assistant.assistant_id:
            raise self._no_task_error(task_id)
        return task

    def _no_task_error(self, task_id: str) -> TaskNotFoundError:
        return TaskNotFoundError(f"there is no task {task_id!r} of this agent")

    async def _wait_for_end(self, task: DurableTask) -> DurableTask:
        await self._rights.watch(task.thread_id)
        try:
            return task.with_standing(await wait_for_end(self._caller, task.thread_id, task.run_id))
        except Unavailable:
            if not self._caller.host.closing.is_set():
                raise
            return task

    async def _follow_task(self, task: DurableTask) -> Events:
        """Yield a task and its updates. The reply is sent from its beginning, so that a client that lost its
        connection receives all of it."""
        caller = self._caller
        await self._rights.watch(task.thread_id)
        yield await self._to_task(task, None)
        if task.state == INPUT_REQUIRED or task.state in TERMINAL:
            return
        names: dict[str, Any] = {"task_id": task.id, "context_id": task.context_id}
        begun_messages: set[str] = set()
        while True:
            if task.is_asleep:
                sleeping_run_id, task = task.run_id, await self._wait_for_wake(task)
                if task.run_id == sleeping_run_id:
                    # Another message has ended the task's wait.
                    superseded = await self._to_task(task, None)
                    yield types.TaskStatusUpdateEvent(**names, status=superseded.status)
                    return
            standing: Standing | None = None
            async for item in streams.follow(caller, task.thread_id, task.run_id, 0):
                if isinstance(item, Standing):
                    standing = item
                elif isinstance(item, SubscriberTooSlow):
                    raise InternalError(
                        f"{item}; subscribe to the task again", {"error": "SubscriberTooSlow"}
                    )
                elif item.name == "metadata":
                    working = types.TaskStatus(state=WORKING)
                    yield types.TaskStatusUpdateEvent(**names, status=working)
                elif item.name == "messages" and (chunk := _read_chunk(item.data)) is not None:
                    message_id, text = chunk
                    part = types.Part(text=text)
                    artifact = types.Artifact(artifact_id=message_id, name="reply", parts=[part])
                    yield types.TaskArtifactUpdateEvent(
                        **names, artifact=artifact, append=message_id in begun_messages
                    )
                    begun_messages.add(message_id)
            if standing is None:
                raise _shutdown_error()
            task = task.with_standing(standing)
            final = await self._to_task(task, None)
            for artifact in final.artifacts:
                yield types.TaskArtifactUpdateEvent(**names, artifact=artifact, last_chunk=True)
            yield types.TaskStatusUpdateEvent(**names, status=final.status)
            if not task.is_asleep:
                return

    async def _wait_for_wake(self, task: DurableTask) -> DurableTask:
        """Wait until a task that sleeps, or waits for a signal, continues, and return its new state."""
        pause, longest = _ASLEEP_S
        while not self._caller.host.closing.is_set():
            await asyncio.sleep(pause)
            now = await self._find_task(task.id, "read")
            if not now.is_asleep or now.run_id != task.run_id:
                return now
            pause = min(longest, pause * 1.5)
        raise _shutdown_error()

    async def _to_task(self, task: DurableTask, asked: Any) -> types.Task:
        most = _read_history_length(asked)
        shown = await describe_task(self._caller.runtime, task)
        if most is not None:
            shown["history"] = shown["history"][-most:] if most else []
        return parse_lenient(shown, types.Task())

    async def _takes_messages(self) -> bool:
        async with self._caller.open_graph(self._assistant.graph_id, "threads.create_run") as graph:
            return "messages" in graph.channels

    def _make_receiver(
        self, config: types.TaskPushNotificationConfig, *, is_with_message: bool
    ) -> push.PushConfig:
        policy = self._caller.host.webhooks
        if policy is None:
            raise PushNotificationNotSupportedError("webhooks are disabled on this server; subscribe instead")
        try:
            policy.check_url(config.url)
        except Unreachable as error:
            raise InvalidParamsError(f"the URL may not be called: {error}") from error
        return push.add_id(MessageToDict(config), is_with_message=is_with_message)

    def _run_headers(self, key: str | None) -> Headers:
        """Return the headers of the request without those that would change how a run is accepted, and with
        the key, if there is one, by which a repeated message is recognised."""
        if key is not None:
            key = f"a2a:{self._assistant.assistant_id}:{key}"
        return without_terms(self._headers, key)


def _read_history_length(asked: Any) -> int | None:
    """Return the number of messages of the history that a request asks for, ``None`` for all."""
    if asked is None or not asked.HasField("history_length"):
        return None
    if asked.history_length < 0:
        raise InvalidParamsError(f"historyLength is 0 or more, not {asked.history_length}")
    return int(asked.history_length)


def _shutdown_error() -> InternalError:
    return InternalError("the server is stopping; subscribe to the task again", {"error": "Unavailable"})


def _find_earlier_answer(task: DurableTask, message: Mapping[str, Any]) -> Standing | None:
    """Return the answer of a task that was sent with this message's id, None if there is none."""
    if (message_id := find_unique_id(message)) is None:
        return None
    same = (standing for standing in task.standings[1:] if protocol_of(standing).get("message") == message_id)
    return next(same, None)


def _find_version(context: ServerCallContext) -> str:
    """Return the release of the protocol that a client speaks: in 1.0 no method has a slash."""
    if "/" in str(context.state.get("method", "")):
        return "0.3"
    return "1.0"


def _read_chunk(data: str) -> tuple[str, str] | None:
    """Return the id and the text of a part of an agent's message; None for anything else."""
    message: Mapping[str, Any] = json.loads(data)[0]
    if message.get("type") not in ("ai", "AIMessageChunk") or not (text := text_of(message)):
        return None
    return str(message.get("id")), text


def _make_push_config(task: DurableTask, config: push.PushConfig) -> types.TaskPushNotificationConfig:
    return parse_lenient({**config, "taskId": task.id}, types.TaskPushNotificationConfig())
