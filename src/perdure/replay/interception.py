"""Interception of calls to the outside while a step is replayed: of chat models, text models, tools and
stores, and of every connection that Python code opens.

Calls of other code in the process are unaffected: the answers belong to the context of the replay, and to the
OS threads that it starts, for as long as those live. Only with ``everywhere`` are connections refused to the
whole process.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from inspect import isawaitable
from multiprocessing.process import BaseProcess
from threading import Lock, Thread
from typing import Any
from urllib.parse import urlsplit

from langchain_core.language_models import BaseChatModel, BaseLLM
from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables.config import ensure_config, var_child_runnable_config
from langchain_core.tools import BaseTool
from langgraph.store.base import BaseStore, Op, Result

from perdure.errors import UnrecordedCall
from perdure.langgraph.call_records import MODEL, TOOL, CallRecord, digest_tool_input
from perdure.replay.answering import CURRENT, Answering

_CONNECTING = frozenset(
    {"socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr"}
    | {"socket.sendto", "socket.sendmsg", "urllib.Request", "subprocess.Popen", "pty.spawn"}
    | {"os.system", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.startfile"}
)
_OF_SOCKET = frozenset({"socket.connect", "socket.sendto", "socket.sendmsg"})
_STARTED_IN: ContextVar[str] = ContextVar("started_in", default="")
"""In an OS thread: the namespace of the task that started it."""
_lock = Lock()
_installed = False
_refusals_everywhere = 0


@contextmanager
def refuse_everywhere() -> Iterator[None]:
    """Refuse connections to the whole process during the block."""
    global _refusals_everywhere
    install()
    with _lock:
        _refusals_everywhere += 1
    try:
        yield
    finally:
        with _lock:
            _refusals_everywhere -= 1


def install() -> None:
    """Put the interceptions in place, once per process; outside of a replay they pass every call on."""
    global _installed
    with _lock:
        if _installed:
            return
        _installed = True
        _wrap(BaseChatModel, "_generate_with_cache", _generate)
        _wrap(BaseChatModel, "_agenerate_with_cache", _agenerate)
        _wrap(BaseChatModel, "stream", _stream)
        _wrap(BaseChatModel, "astream", _astream)
        _wrap(BaseLLM, "_generate_helper", _refuse_text_model)
        _wrap(BaseLLM, "_agenerate_helper", _refuse_text_model)
        _wrap(BaseTool, "run", _run)
        _wrap(BaseTool, "arun", _arun)
        # Without these, a call in a new OS thread would really be made, as the thread has no context.
        _wrap(ThreadPoolExecutor, "submit", _submit)
        _wrap(Thread, "start", _start_thread)
        _wrap(BaseProcess, "start", _refuse_process)
        sys.addaudithook(_audit)


def _wrap(owner: type, name: str, replaced: Callable[..., Any]) -> None:
    original = getattr(owner, name)

    @functools.wraps(original)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        answers = CURRENT.get()
        if answers is None:
            return original(self, *args, **kwargs)
        return replaced(answers, functools.partial(original, self), self, *args, **kwargs)

    setattr(owner, name, call)


def _audit(event: str, args: tuple[Any, ...]) -> None:
    if event not in _CONNECTING:
        return
    answers = CURRENT.get()
    if answers is None and not _refusals_everywhere:
        return
    reason = f"{event}{_describe_target(event, args)}: a replay opens no connection and starts no process"
    if answers is not None:
        raise answers.refuse_connection(_find_namespace() or _STARTED_IN.get(), reason)
    raise UnrecordedCall(reason)


def _describe_target(event: str, args: tuple[Any, ...]) -> str:
    """Return the host or the program that an event names, without what may be secret: a path, a query, a
    command's arguments."""
    if event in _OF_SOCKET:
        address = args[-1]
        shown: Any = address[:2] if isinstance(address, tuple) else "a local socket"
    elif event == "urllib.Request":
        shown = urlsplit(str(args[0])).hostname
    elif event == "os.system" or not args:
        return ""
    else:
        shown = args[0]
    text = str(shown)
    return f" {text if text.isprintable() else ascii(text)}"


def _submit(
    answers: Answering,
    original: Callable[..., Any],
    executor: ThreadPoolExecutor,
    function: Callable[..., Any],
    /,
    *args: Any,
    **kwargs: Any,
) -> Any:
    # The pool may start a worker here that outlives the replay: start it outside of the replay.
    token = CURRENT.set(None)
    try:
        return original(_bind_to_replay(answers, function), *args, **kwargs)
    finally:
        CURRENT.reset(token)


def _start_thread(answers: Answering, original: Callable[..., Any], thread: Thread) -> None:
    thread.run = _bind_to_replay(answers, thread.run)  # type: ignore[method-assign]
    original()


def _bind_to_replay(answers: Answering, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that runs as a part of the replay in whichever OS thread calls it."""
    namespace = _find_namespace() or _STARTED_IN.get()

    def run(*args: Any, **kwargs: Any) -> Any:
        tokens = CURRENT.set(answers), _STARTED_IN.set(namespace)
        try:
            return function(*args, **kwargs)
        finally:
            CURRENT.reset(tokens[0])
            _STARTED_IN.reset(tokens[1])

    return run


def _refuse_process(answers: Answering, original: Callable[..., Any], process: BaseProcess) -> None:
    reason = "a process of multiprocessing: a replay opens no connection and starts no process"
    raise answers.refuse_connection(_find_namespace() or _STARTED_IN.get(), reason)


def _answer(answers: Answering, call: CallRecord, tool_call_id: str | None = None) -> Any:
    if not call.place and (namespace := _STARTED_IN.get()):
        raise answers.refuse_thread(call, namespace)
    return answers.answer(call, tool_call_id)


def _find_namespace(config: Any = None) -> str:
    found = config or var_child_runnable_config.get() or {}
    return str((found.get("metadata") or {}).get("langgraph_checkpoint_ns") or "")


# Models


def _make_result(answer: Any) -> ChatResult:
    return ChatResult(generations=[ChatGeneration(message=answer)])


def _generate(
    answers: Answering,
    original: Callable[..., Any],
    model: BaseChatModel,
    messages: Any,
    stop: Any = None,
    run_manager: Any = None,
    **kwargs: Any,
) -> ChatResult:
    # A call without callbacks was not recorded, as recording uses callbacks.
    found = run_manager and answers.recorder.open.get(run_manager.run_id)
    call = found or CallRecord(MODEL, type(model).__name__, {}, place=_find_namespace())
    return _make_result(_answer(answers, call))


async def _agenerate(*args: Any, **kwargs: Any) -> ChatResult:
    return _generate(*args, **kwargs)


def _stream(
    answers: Answering, original: Callable[..., Any], model: BaseChatModel, *args: Any, **kwargs: Any
) -> Iterator[AIMessageChunk]:
    yield _make_chunk(model.invoke(*args, **kwargs))


async def _astream(
    answers: Answering, original: Callable[..., Any], model: BaseChatModel, *args: Any, **kwargs: Any
) -> AsyncIterator[AIMessageChunk]:
    yield _make_chunk(await model.ainvoke(*args, **kwargs))


def _make_chunk(message: AIMessage) -> AIMessageChunk:
    if isinstance(message, AIMessageChunk):
        return message
    fields = message.model_dump(exclude={"type"})
    return AIMessageChunk(**fields, chunk_position="last")


def _refuse_text_model(
    answers: Answering, original: Callable[..., Any], model: BaseLLM, *args: Any, **kwargs: Any
) -> Any:
    raise answers.refuse(CallRecord(MODEL, type(model).__name__, {}, place=_find_namespace()))


# Tools


def _record_tool_call(tool: BaseTool, tool_input: Any, config: Any) -> CallRecord:
    given = tool_input
    if isinstance(tool_input, dict):
        # The input as the callbacks of the recording saw it.
        given = tool._filter_injected_args(tool_input)  # pyright: ignore[reportPrivateUsage]
    return CallRecord(TOOL, tool.name, digest_tool_input(given), place=_find_namespace(ensure_config(config)))


def _run(
    answers: Answering,
    original: Callable[..., Any],
    tool: BaseTool,
    tool_input: Any,
    *args: Any,
    **kwargs: Any,
) -> Any:
    call = _record_tool_call(tool, tool_input, kwargs.get("config"))
    tool_call_id = kwargs.get("tool_call_id")
    if tool.name in answers.live:
        answers.compare(call, tool_call_id)
        return original(tool_input, *args, **kwargs)
    answer = _answer(answers, call, tool_call_id)
    # A call by a model gets the message, any other call only its content.
    if tool_call_id is None and hasattr(answer, "tool_call_id"):
        return answer.content
    return answer


async def _arun(*args: Any, **kwargs: Any) -> Any:
    answer = _run(*args, **kwargs)
    if isawaitable(answer):
        return await answer
    return answer


class RefusingStore(BaseStore):
    """Store for a replay. The contents of the store at the time of a step are not recorded, so reading is
    refused. Writes are dropped."""

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        return [self._make_result(op) for op in ops]

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        return self.batch(ops)

    def _make_result(self, op: Op) -> Result:
        if type(op).__name__ == "PutOp":
            return None
        call = CallRecord(
            TOOL, f"store.{type(op).__name__.removesuffix('Op').lower()}", {}, place=_find_namespace()
        )
        answers = CURRENT.get()
        raise UnrecordedCall("a replay has no store") if answers is None else answers.refuse(call)
