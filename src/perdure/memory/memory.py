"""Memory of one user over a LangGraph store: what is known of the user, since when, and until when."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Protocol, TypeVar, runtime_checkable
from uuid import UUID

from langgraph.store.base import BaseStore, GetOp, Op, PutOp, SearchOp

from perdure.memory import programs
from perdure.memory.facts import Fact, NewFact, Remembered, ThreadSummary, convert_to_utc
from perdure.memory.steps import FactChange, Place, Steps, read_removal_time, value_of
from perdure.memory.users import ROOT, namespace_of, user_id, user_of_namespace
from perdure.model.program import ProgramResult, advance

R = TypeVar("R")

FORMAT = "perdure.memory/1"


class Memory:
    """Facts and summaries of one user. Each method has a twin for event loops, whose name begins with ``a``.

    On a store of Perdure, two changes of the same facts at the same moment are made one after the other.
    Other stores of LangGraph cannot compare and write in one step, so there one of them may be lost.

    Args:
        store: A store, such as ``Database.store(index=…)``; ``recall`` compares a query by the index.
        user: The user's id; a number or a UUID stands for its text.
        root: The namespace that contains the namespaces of all users.
        now: Returns the current time.

    Raises:
        TypeError: The user's id is not text, number or UUID.
        ValueError: The user's id is empty or too long, or has a character that stores refuse.
    """

    def __init__(
        self,
        store: BaseStore,
        user: str | int | UUID,
        *,
        root: Sequence[str] = ROOT,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.user = user_id(user)
        self._store = store
        self._place = Place(namespace_of(user, root), now)

    @property
    def namespace(self) -> tuple[str, ...]:
        """Namespace of the user's items in the store."""
        return self._place.namespace

    def remember(
        self,
        text: str,
        *,
        thread: str | None = None,
        message: str | None = None,
        valid_from: datetime | None = None,
        supersedes: Sequence[str] = (),
        heard_at: datetime | None = None,
    ) -> Fact:
        """Remember a fact, in one commit with the facts that it supersedes.

        A current fact with an equal text, apart from case and blanks, is returned as it is.

        Args:
            text: The fact, at most 2,000 characters.
            thread: The thread that it comes from.
            message: The message that it comes from.
            valid_from: The time since when it holds, with a time zone.
            supersedes: The ids of facts that it corrects. They are closed, and stay in the history; if one
                was superseded already, its current successor is closed instead.
            heard_at: The time at which the source was written, with a time zone, for a fact that is extracted
                later. Such a fact is not stored if its text, or the user, was forgotten since, nor a second
                time from the same message.

        Raises:
            NotFound: One of the facts in ``supersedes`` does not exist.
            Forgotten: The text, or the user, was forgotten after ``heard_at``.
            Contention: Others keep changing the same facts.
            ValueError: The text is empty or too long, or a time has no time zone.
        """
        new = NewFact(
            text=text,
            thread=thread,
            message=message,
            valid_from=valid_from,
            supersedes=supersedes,
            heard_at=heard_at,
        )
        return self._run(programs.remember(self._place, new))

    async def aremember(
        self,
        text: str,
        *,
        thread: str | None = None,
        message: str | None = None,
        valid_from: datetime | None = None,
        supersedes: Sequence[str] = (),
        heard_at: datetime | None = None,
    ) -> Fact:
        """See ``remember``."""
        new = NewFact(
            text=text,
            thread=thread,
            message=message,
            valid_from=valid_from,
            supersedes=supersedes,
            heard_at=heard_at,
        )
        return await self._arun(programs.remember(self._place, new))

    def recall(
        self,
        query: str | None = None,
        k: int = 5,
        *,
        offset: int = 0,
        filter: Mapping[str, Any] | None = None,  # noqa: A002 - the store's word
    ) -> list[Remembered]:
        """Return at most ``k`` current facts and summaries. With a query, on a store with an index, the
        nearest come first; otherwise the newest. Other items of the namespace are left out; ``facts`` raises
        an error that names one.

        Args:
            query: The query.
            k: Maximum number of entries.
            offset: The number of entries to pass over.
            filter: LangGraph's filter on the items, e.g. ``{"thread": "t1"}`` or ``{"kind": "summary"}``.
        """
        return self._run(programs.recall(self._place, query, k, offset, filter))

    async def arecall(
        self,
        query: str | None = None,
        k: int = 5,
        *,
        offset: int = 0,
        filter: Mapping[str, Any] | None = None,  # noqa: A002 - the store's word
    ) -> list[Remembered]:
        """See ``recall``."""
        return await self._arun(programs.recall(self._place, query, k, offset, filter))

    def facts(self, *, known_at: datetime | None = None, history: bool = False) -> list[Fact]:
        """Return the current facts, oldest first.

        Args:
            known_at: Return those that were current at this time instead.
            history: True to return superseded and retracted facts, too.
        """
        return _select_facts(self._run(programs.read_facts(self._place)), known_at, history=history)

    async def afacts(self, *, known_at: datetime | None = None, history: bool = False) -> list[Fact]:
        """See ``facts``."""
        return _select_facts(await self._arun(programs.read_facts(self._place)), known_at, history=history)

    def retract(self, id: str) -> Fact:  # noqa: A002 - the field's name
        """Close a fact that is not true any more, without a successor; it stays in the history.

        Raises:
            NotFound: There is no such fact.
        """
        return self._run(programs.retract(self._place, id))

    async def aretract(self, id: str) -> Fact:  # noqa: A002
        """See ``retract``."""
        return await self._arun(programs.retract(self._place, id))

    def undo(self, id: str) -> list[Fact]:  # noqa: A002
        """Undo a fact, so that the facts that it superseded are current again, or undo its retraction.
        Nothing is removed: the facts that are current again are new entries of the history, and are returned.

        Raises:
            NotFound: There is no such fact.
            Conflict: Another fact superseded it; undo that one.
        """
        return self._run(programs.undo(self._place, id))

    async def aundo(self, id: str) -> list[Fact]:  # noqa: A002
        """See ``undo``."""
        return await self._arun(programs.undo(self._place, id))

    def summaries(self) -> list[ThreadSummary]:
        """Return the summaries of the user's threads, oldest first."""
        return self._run(programs.read_summaries(self._place))

    async def asummaries(self) -> list[ThreadSummary]:
        """See ``summaries``."""
        return await self._arun(programs.read_summaries(self._place))

    def summarise(self, thread: str, text: str, *, heard_at: datetime | None = None) -> ThreadSummary:
        """Store the summary of a thread, in place of its earlier one.

        Args:
            thread: The thread.
            text: The summary.
            heard_at: The time at which the newest message that the summary covers was written, with a time
                zone, for a summary that is made later.

        Raises:
            ValueError: The text is empty, or longer than 20,000 characters, or the time has no time zone.
            Forgotten: The summary of the thread, or the user, was forgotten after ``heard_at``.
        """
        return self._run(programs.summarise(self._place, thread, text, heard_at))

    async def asummarise(self, thread: str, text: str, *, heard_at: datetime | None = None) -> ThreadSummary:
        """See ``summarise``."""
        return await self._arun(programs.summarise(self._place, thread, text, heard_at))

    def forget(self, id: str | None = None) -> int:  # noqa: A002
        """Remove for good, and return the number of removed items.

        A mark without the text is left in place of a fact or a summary, so that an extraction from
        earlier messages does not bring it back.

        Args:
            id: The id of a fact, with which all facts of an equal text are removed, or a thread, whose
                summary is removed. By default all that is known of the user is removed, marks too.

        Raises:
            NotFound: There is no such fact or summary.
        """
        if id is not None:
            return self._run(programs.forget(self._place, id))
        removed = self._run(programs.forget_all(self._place))
        if isinstance(self._store, KeepsNames):
            self._store.remove_empty_namespaces(self.namespace)
        return removed

    async def aforget(self, id: str | None = None) -> int:  # noqa: A002
        """See ``forget``."""
        if id is not None:
            return await self._arun(programs.forget(self._place, id))
        removed = await self._arun(programs.forget_all(self._place))
        if isinstance(self._store, KeepsNames):
            await self._store.aremove_empty_namespaces(self.namespace)
        return removed

    def forget_source(self, thread: str, message: str) -> int:
        """Remove the facts that come from a message, and the summary of its thread, for good and without a
        mark; return the number of removed items."""
        return self._run(programs.forget_source(self._place, thread, message))

    async def aforget_source(self, thread: str, message: str) -> int:
        """See ``forget_source``."""
        return await self._arun(programs.forget_source(self._place, thread, message))

    def forgotten_at(self) -> datetime | None:
        """Return the time of the latest ``forget()`` of all that was known of the user, or ``None``."""
        return self._run(read_removal_time(self._place))

    async def aforgotten_at(self) -> datetime | None:
        """See ``forgotten_at``."""
        return await self._arun(read_removal_time(self._place))

    def export(self) -> dict[str, Any]:
        """Return all that is known of the user, with its history, as plain JSON data."""
        found = self._run(programs.read_facts(self._place)), self._run(programs.read_summaries(self._place))
        return self._build_export(*found)

    async def aexport(self) -> dict[str, Any]:
        """See ``export``."""
        place = self._place
        found = await self._arun(programs.read_facts(place)), await self._arun(programs.read_summaries(place))
        return self._build_export(*found)

    def _build_export(self, facts: Sequence[Fact], summaries: Sequence[ThreadSummary]) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "user": self.user,
            "facts": [{"id": fact.id, **fact.dump()} for fact in facts],
            "summaries": [{"thread": summary.thread, **summary.dump()} for summary in summaries],
        }

    def _run(self, steps: Steps[R]) -> R:
        return _run(self._store, steps)

    async def _arun(self, steps: Steps[R]) -> R:
        return await _arun(self._store, steps)


def users(store: BaseStore, *, root: Sequence[str] = ROOT) -> list[str]:
    """Return the users with memories, in order."""
    return _list_users(_run(store, programs.read_namespaces(root)), root)


async def ausers(store: BaseStore, *, root: Sequence[str] = ROOT) -> list[str]:
    """See ``users``."""
    return _list_users(await _arun(store, programs.read_namespaces(root)), root)


def find_roots(store: BaseStore, user: str | int | UUID) -> list[tuple[str, ...]]:
    """Return the namespaces, as ``root=`` names them, in which something is known of a user, in order."""
    return _run(store, programs.roots(namespace_of(user, ())[0]))


async def afind_roots(store: BaseStore, user: str | int | UUID) -> list[tuple[str, ...]]:
    """See ``find_roots``."""
    return await _arun(store, programs.roots(namespace_of(user, ())[0]))


def _list_users(namespaces: Sequence[tuple[str, ...]], root: Sequence[str]) -> list[str]:
    return sorted(user_of_namespace(each, root) for each in namespaces)


def _select_facts(facts: Sequence[Fact], known_at: datetime | None, *, history: bool) -> list[Fact]:
    if known_at is not None and history:
        raise ValueError("history=True returns the facts of all times; leave out known_at")
    if known_at is not None:
        at = convert_to_utc(known_at, "known_at")
        return [fact for fact in facts if fact.was_known(at)]
    return [fact for fact in facts if history or fact.is_current]


def _add_ttl(store: BaseStore, ops: Sequence[Op]) -> list[Any]:
    """Return the operations with the store's own time to live, which only its methods for single operations
    add."""
    ttl = store.ttl_config or {}
    default, refresh = ttl.get("default_ttl"), ttl.get("refresh_on_read", True)
    out: list[Any] = []
    for op in ops:
        if isinstance(op, PutOp) and op.value is not None:
            op = op._replace(ttl=default)
        elif isinstance(op, SearchOp):
            op = op._replace(refresh_ttl=op.refresh_ttl and refresh)
        out.append(op)
    return out


@runtime_checkable
class KeepsNames(Protocol):
    """Store that may keep the names of namespaces without items, and removes them when asked, as Perdure's
    stores do: the namespace of a user names the user."""

    def remove_empty_namespaces(self, prefix: Sequence[str]) -> None:
        """Remove the names of namespaces within ``prefix`` that hold no items."""
        ...

    async def aremove_empty_namespaces(self, prefix: Sequence[str]) -> None:
        """See ``remove_empty_namespaces``."""
        ...


@runtime_checkable
class ConditionalStore(Protocol):
    """Store that can put items on condition that the items read before are unchanged, as Perdure's stores
    can."""

    def put_if_unchanged(self, puts: Sequence[PutOp], seen: Mapping[str, Mapping[str, Any] | None]) -> bool:
        """Put items of one namespace in one commit; return False if a seen item has changed."""
        ...

    async def aput_if_unchanged(
        self, puts: Sequence[PutOp], seen: Mapping[str, Mapping[str, Any] | None]
    ) -> bool:
        """See ``put_if_unchanged``."""
        ...


def _run(store: BaseStore, steps: Steps[R]) -> R:
    step = advance(steps)
    while not isinstance(step, ProgramResult):
        if not isinstance(step, FactChange):
            answer: Any = store.batch(_add_ttl(store, step))
        elif isinstance(store, ConditionalStore):
            answer = store.put_if_unchanged(_add_ttl(store, step.puts), step.seen)
        elif answer := _is_as_seen(step, store.batch(_list_reads(step))):
            store.batch(_add_ttl(store, step.puts))
        step = advance(steps, answer)
    return step.result


async def _arun(store: BaseStore, steps: Steps[R]) -> R:
    step = advance(steps)
    while not isinstance(step, ProgramResult):
        if not isinstance(step, FactChange):
            answer: Any = await store.abatch(_add_ttl(store, step))
        elif isinstance(store, ConditionalStore):
            answer = await store.aput_if_unchanged(_add_ttl(store, step.puts), step.seen)
        elif answer := _is_as_seen(step, await store.abatch(_list_reads(step))):
            await store.abatch(_add_ttl(store, step.puts))
        step = advance(steps, answer)
    return step.result


def _list_reads(change: FactChange) -> list[Op]:
    """Return the reads of the items that a change has seen, for a store that cannot compare them in the
    commit."""
    return [GetOp(change.puts[0].namespace, key, refresh_ttl=False) for key in change.seen]


def _is_as_seen(change: FactChange, items: Sequence[Any]) -> bool:
    return list(map(value_of, items)) == list(change.seen.values())
