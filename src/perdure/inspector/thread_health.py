"""Finds what is damaged, large, stuck or expired among a tenant's threads, some threads in each request.

So the memory and the time of a request do not depend on the number of threads.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any

from perdure.engine.checks import fsck
from perdure.engine.queue import inbox
from perdure.engine.queue.retries import find_repetitions
from perdure.engine.threads.measure import measure
from perdure.errors import BadSetting, PerdureError
from perdure.inspector.access import Access
from perdure.inspector.listing import describe_run
from perdure.inspector.overview import sees_database
from perdure.inspector.requests import read_flag
from perdure.langgraph.values.large_channel_warning import WARN_BYTES
from perdure.model.records import Partition
from perdure.model.retention_policy import Retention, RetentionRules
from perdure.model.times import to_micros
from perdure.retention.sweeper import RetentionOptions
from perdure.runtime.threads.walk_by_id import WalkPlace, number, walk
from perdure.storage.own_threads import run_in_own_thread
from perdure.storage.url import backend_of

_SECONDS = 0.4

Look = Callable[[Access, Partition, Mapping[str, str]], Awaitable[list[dict[str, Any]]]]
"""Examines a thread and returns the findings."""


async def care(access: Access, asked: Mapping[str, str]) -> dict[str, Any]:
    """Return the state of the database as a whole: its schema, the steps that are pending, the policies and,
    for a viewer who may see all threads, its size, the state of its keys if it is encrypted, and that of its
    password if a function provides it. Neither reveals a key or the password.

    Args:
        access: The viewer's rights.
        asked: Nothing.
    """
    sees_all = await access.authorize_listing() is None
    known: dict[str, Any] = dict.fromkeys(("database_bytes", "schema", "retention", "keys", "password"))
    if (policy := access.handle.retention.default) is not None:
        known["retention"] = {"keep_last": policy.keep_last, "keep_for": policy.keep_for}
    if access.url is not None:
        known["schema"] = await run_in_own_thread(_schema, access.url)
    if sees_all and sees_database(access):
        known["database_bytes"] = await access.handle.acount_bytes()
    if sees_all and access.handle.keys is not None:
        keys = access.handle.keys.current
        known["keys"] = {"data_keys": len(keys.data_keys), "wrapped_at": to_micros(keys.wrapped_at)}
    if sees_all and (source := access.handle.driver.capabilities.password) is not None:
        known["password"] = source.state._asdict()
    return {"alert_bytes": WARN_BYTES, "checks": sorted(EXAMINATIONS), **known}


async def scan(access: Access, asked: Mapping[str, str]) -> dict[str, Any]:
    """Examine the tenant's next threads and return the findings.

    Args:
        access: The viewer's rights.
        asked: ``what``: ``sizes``, ``dead`` (with ``repeated=1`` also failed runs that were run again),
            ``replies``, ``fsck`` or ``retention`` (with ``keep_last`` or ``keep_for``); ``cursor``, where the
            last request ended.

    Returns:
        ``rows``, the number of threads ``examined``, and the ``cursor`` to go on from, ``None`` at the end.

    Raises:
        BadSetting: A parameter cannot be used.
    """
    sees = await access.authorize_listing()
    what = asked.get("what") or ""
    if what not in EXAMINATIONS:
        raise BadSetting(f"what is one of {sorted(EXAMINATIONS)}, not {what[:40]!r}")
    rows: list[dict[str, Any]] = []
    examined = 0
    place = WalkPlace.read(asked.get("cursor") or "")
    until = time.monotonic() + _SECONDS
    async with aclosing(walk(access.handle, access.tenant, sees, place)) as steps:
        async for step in steps:
            if step.partition is not None:
                examined += 1
                rows += await _look_at(EXAMINATIONS[what], access, step.partition, asked)
            if time.monotonic() > until:
                return {"rows": rows, "examined": examined, "cursor": step.place.cursor}
    return {"rows": rows, "examined": examined, "cursor": None}


async def _look_at(
    look: Look, access: Access, partition: Partition, asked: Mapping[str, str]
) -> list[dict[str, Any]]:
    try:
        found = await look(access, partition, asked)
    except BadSetting:
        raise
    except PerdureError as error:
        found = [{"problem": str(error)}]
    return [{"thread_id": partition.thread, **each} for each in found]


async def _list_sizes(access: Access, partition: Partition, asked: Mapping[str, str]) -> list[dict[str, Any]]:
    found = await access.handle.arun(measure(partition, access.handle.digest))
    channels = sorted(found.channels.items(), key=lambda each: -each[1].bytes)
    return [
        {
            "bytes": found.total,
            "checkpoints": found.checkpoints.count,
            "channels": [{"name": name, "bytes": size.bytes} for name, size in channels[:5]],
        }
    ]


async def _list_dead(access: Access, partition: Partition, asked: Mapping[str, str]) -> list[dict[str, Any]]:
    found = await access.handle.arun(inbox.read_failures(partition))
    again = await access.handle.arun(find_repetitions(partition, [run.id for run in found.runs]))
    with_repeated = read_flag(asked, "repeated")
    return [
        *(
            {
                "kind": "run",
                **describe_run(run),
                "is_repeated": run.id in again,
                "repeated_by": again.get(run.id),
            }
            for run in found.runs
            if with_repeated or run.id not in again
        ),
        *(
            {
                "kind": "reply",
                "number": reply.seq,
                "run_id": reply.run_id,
                "state": reply.state,
                "channel": reply.channel,
                "attempts": reply.attempts,
                "updated_at": reply.created_at,
                "error": reply.error,
            }
            for reply in found.replies
        ),
    ]


async def _list_replies(
    access: Access, partition: Partition, asked: Mapping[str, str]
) -> list[dict[str, Any]]:
    return [each for each in await _list_dead(access, partition, asked) if each["kind"] == "reply"]


async def _list_faults(
    access: Access, partition: Partition, asked: Mapping[str, str]
) -> list[dict[str, Any]]:
    found = await access.handle.arun(fsck.check(partition, access.handle.digest))
    out = [
        {
            "problem": each.detail,
            "kind": each.kind.value,
            "checkpoint_id": each.checkpoint_id,
            "advice": each.advice,
            "repairable": each.repairable,
        }
        for each in found
    ]
    out += [{"problem": text, "kind": "changed"} for text in await access.handle.aexamine(partition)]
    return out


async def _show_retention(
    access: Access, partition: Partition, asked: Mapping[str, str]
) -> list[dict[str, Any]]:
    sweeper = access.handle.sweeper(RetentionOptions(dry_run=True, rules=_read_rules(asked)))
    swept = await sweeper.arun(sweeper.apply_to(partition))
    if not swept.checkpoints and not swept.expired:
        return []
    return [{"checkpoints": swept.checkpoints, "bytes": swept.bytes, "expired": bool(swept.expired)}]


EXAMINATIONS: Mapping[str, Look] = {
    "sizes": _list_sizes,
    "dead": _list_dead,
    "replies": _list_replies,
    "fsck": _list_faults,
    "retention": _show_retention,
}
"""Examinations by name."""


def _read_rules(asked: Mapping[str, str]) -> RetentionRules | None:
    """Return the policy to preview, for every thread; ``None`` if the viewer gave none."""
    keep_last, keep_for = asked.get("keep_last") or None, asked.get("keep_for") or None
    if keep_last is None and keep_for is None:
        return None
    last = None
    if keep_last is not None and (last := number(keep_last, "keep_last")) == 0:
        raise BadSetting("keep_last has to be a number above 0, not '0'")
    try:
        policy = Retention(keep_last=last, keep_for=keep_for)
    except ValueError as error:
        raise BadSetting(str(error)) from None
    return RetentionRules(policy, only_default=True)


def _schema(url: str) -> dict[str, Any]:
    backend = backend_of(url)
    if not backend.SCHEMA_VERSION:
        return {"version": None, "release": None, "pending": []}
    version, release, pending = backend.schema_version(url), backend.SCHEMA_VERSION, []
    # A later release may have migrated the database while this process uses it: nothing is pending then.
    if version <= release:
        pending = backend.plan_migration(url)
    return {"version": version, "release": release, "pending": pending}
