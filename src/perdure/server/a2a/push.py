"""Push notifications: where the end of a task is sent, and what is sent.

A configuration that comes with a message is stored with the message in one commit, a later one in the task's
thread; both are removed with the thread. The outbox sends a task when it asks a question and when it ends,
also if it ends because another message closes its question: at least once, signed as webhooks are.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from a2a.compat.v0_3.conversions import to_compat_task
from a2a.types.a2a_pb2 import Task
from a2a.utils.proto_utils import parse_lenient

from perdure.model.runs.messages import Reply
from perdure.runtime.documents import Document, ThreadDocuments
from perdure.runtime.json_encoding import to_json
from perdure.runtime.tenant import TenantRuntime
from perdure.runtime.threads.threads import missing_error
from perdure.server.a2a.tasks import (
    TERMINAL,
    DurableTask,
    describe_task,
    find,
    is_by_wait,
    list_tasks,
    protocol_of,
)
from perdure.server.responses import run_id_of

_TOKEN = "X-A2A-Notification-Token"  # noqa: S105 - the name of a header
_CONFIGS_MAX = 10
_PAGE = 50
_VISIBLE = re.compile(r"[!-~]+( [!-~]+)*")
_NO_CONFIGS: Mapping[str, Any] = {"set": [], "deleted": [], "sent": {}}

PushConfig = dict[str, Any]
"""A configuration in the JSON form of the protocol: ``id``, ``url``, and optionally ``token`` and
``authentication``."""


class Unsent(NamedTuple):
    """Requests of a notice that have still to be sent. ``receivers`` is the number of all receivers of the
    task; with ``was_refused`` one of them has refused the notice for good."""

    notices: Sequence[TaskNotice] = ()
    receivers: int = 0
    was_refused: bool = False


class TaskNotice(NamedTuple):
    """A request to a receiver, without its signature."""

    receiver: str
    url: str
    headers: Mapping[str, str]
    body: bytes


def add_id(config: Mapping[str, Any], *, is_with_message: bool) -> PushConfig:
    """Return the stored form of a configuration, with an id.

    Args:
        config: the configuration, in the JSON form of the protocol.
        is_with_message: True if the configuration came with a message. If it has no id, it then gets one made
            from its URL: a message that is sent again brings the same configuration, and the receiver is
            notified once.

    Raises:
        ValueError: it has a value that cannot be sent in a header.
    """
    kept = {name: config[name] for name in ("url", "token", "authentication") if config.get(name)}
    for name, value in _make_headers(kept).items():
        if not _VISIBLE.fullmatch(value):
            raise ValueError(f"the value for {name} has characters other than visible ASCII ones")
    if is_with_message:
        generated_id = uuid.uuid5(uuid.NAMESPACE_URL, config.get("url", ""))
    else:
        generated_id = uuid.uuid4()
    return {"id": config.get("id") or str(generated_id), **kept}


async def read_configs(runtime: TenantRuntime, task: DurableTask) -> list[PushConfig]:
    """Return the configurations of a task."""
    by_id = {
        config["id"]: config
        for standing in task.standings
        for config in protocol_of(standing).get("push", ())
    }
    later = await _read_document(runtime, task)
    by_id |= {config["id"]: config for config in later["set"]}
    return [config for name, config in by_id.items() if name not in later["deleted"]]


async def put(runtime: TenantRuntime, task: DurableTask, config: PushConfig) -> None:
    """Store a configuration of a task, in place of the one with the same id. ``ValueError`` if there are
    too many."""

    def change(body: Mapping[str, Any]) -> dict[str, Any]:
        others = [other for other in body["set"] if other["id"] != config["id"]]
        if len(others) >= _CONFIGS_MAX:
            raise ValueError(f"a task has at most {_CONFIGS_MAX} configurations; delete one of them")
        deleted = [name for name in body["deleted"] if name != config["id"]]
        return {**body, "set": [*others, config], "deleted": deleted}

    await _change_document(runtime, task, change)


async def delete(runtime: TenantRuntime, task: DurableTask, config_id: str) -> None:
    """Remove a configuration of a task."""

    def change(body: Mapping[str, Any]) -> dict[str, Any]:
        others = [other for other in body["set"] if other["id"] != config_id]
        return {**body, "set": others, "deleted": sorted({*body["deleted"], config_id})}

    await _change_document(runtime, task, change)


async def find_unsent(runtime: TenantRuntime, thread_id: str, reply: Reply, *, is_closed: bool) -> Unsent:
    """Return what has still to be sent about a task that has ended or asks a question; nothing if its run was
    removed.

    Args:
        runtime: the runtime of the task's tenant.
        thread_id: the thread.
        reply: the notice. Receivers that have it, or that have refused this reply for good, are left out.
        is_closed: the notice says that another message has closed the question of the run, not that the run
            has ended.
    """
    run_id = reply.payload["run_id"]
    task = await _task_of(runtime, thread_id, run_id)
    if task is None or (is_closed and not task.is_superseded):
        # The question is not closed if the task was cancelled meanwhile, or if the question is open again
        # because the message that closed it was rolled back.
        return Unsent()
    if not (receivers := await read_configs(runtime, task)):
        return Unsent()
    stored = await _read_document(runtime, task)
    informed = stored.get("sent", {}).get(reply.id, ())
    # A person who has the notice sent again makes another reply of it, which may be refused anew.
    numbers = stored.get("refused", {}).get(reply.id, {})
    refused = [receiver for receiver, number in numbers.items() if number == reply.seq]
    shown = await describe_task(runtime, task)
    if protocol_of(task.standings[0]).get("version") == "0.3":
        content = _encode_early(shown)
    else:
        content = to_json({"task": shown})
    notices = [
        TaskNotice(receiver["id"], receiver["url"], _make_headers(receiver), content.encode())
        for receiver in receivers
        if receiver["id"] not in informed and receiver["id"] not in refused
    ]
    return Unsent(notices, len(receivers), bool(refused))


async def note_outcome(
    runtime: TenantRuntime, thread_id: str, reply: Reply, receiver: str, *, is_refused: bool
) -> None:
    """Store that a receiver has a notice or has refused it for good, so that it is not called again when
    another one fails.

    Args:
        runtime: the runtime of the task's tenant.
        thread_id: the thread.
        reply: the notice.
        receiver: the id of the receiver's configuration.
        is_refused: True if the receiver has refused it.
    """

    def change(body: Mapping[str, Any]) -> dict[str, Any]:
        if is_refused:
            refused = body.get("refused", {})
            numbers = {**refused.get(reply.id, {}), receiver: reply.seq}
            return {**body, "refused": {**refused, reply.id: numbers}}
        sent = body.get("sent", {})
        return {**body, "sent": {**sent, reply.id: sorted({*sent.get(reply.id, ()), receiver})}}

    task = await _task_of(runtime, thread_id, reply.payload["run_id"])
    if task is not None:
        await _change_document(runtime, task, change)


async def forget_ended(runtime: TenantRuntime, thread_id: str, run_id: str) -> None:
    """Remove what was stored beside the task of a run, if the task has ended."""
    task = await _task_of(runtime, thread_id, run_id)
    if task is not None and task.state in TERMINAL:
        await _open_documents(runtime, task).remove(task.id)


async def _task_of(runtime: TenantRuntime, thread_id: str, run_id: str) -> DurableTask | None:
    """Return the task that a run began or one of whose questions it answers; ``None`` if the run is not
    stored any more, or belongs to no task."""
    standing = await runtime.find(thread_id, run_id)
    if standing is None:
        return None
    protocol = protocol_of(standing)
    if "task" in protocol or (not is_by_wait(standing) and (protocol or standing.message.mode != "answer")):
        return await find(runtime, thread_id, protocol.get("task", run_id_of(standing)))
    # The answer came through another API, or from a deadline: it belongs to the last task before it.
    page: Sequence[DurableTask] = ()
    before: int | None = standing.message.seq
    while before is not None and not page:
        page, before = await list_tasks(runtime, thread_id, _PAGE, before)
    if page and run_id_of(standing) in map(run_id_of, page[0].standings):
        return page[0]
    return None


def _encode_early(shown: Mapping[str, Any]) -> str:
    task = to_compat_task(parse_lenient(dict(shown), Task()))
    return task.model_dump_json(by_alias=True, exclude_none=True)


def _make_headers(config: PushConfig) -> dict[str, str]:
    headers: dict[str, str] = {}
    if "token" in config:
        headers[_TOKEN] = config["token"]
    authentication = config.get("authentication") or {}
    # A configuration of release 0.3 has several schemes, of which the SDK passes on the first.
    scheme = authentication.get("scheme")
    if scheme and authentication.get("credentials"):
        headers["Authorization"] = f"{scheme} {authentication['credentials']}"
    return headers


def _open_documents(runtime: TenantRuntime, task: DurableTask) -> ThreadDocuments:
    return runtime.thread_documents(task.thread_id, "task_push")


async def _read_document(runtime: TenantRuntime, task: DurableTask) -> Mapping[str, Any]:
    return _body_of(await _open_documents(runtime, task).get(task.id))


def _body_of(document: Document | None) -> Mapping[str, Any]:
    if document is None:
        return _NO_CONFIGS
    return document.body


async def _change_document(runtime: TenantRuntime, task: DurableTask, changed: Any) -> None:
    stored = await _open_documents(runtime, task).change(task.id, lambda held: changed(_body_of(held)))
    if stored is None:
        raise missing_error(task.thread_id)
