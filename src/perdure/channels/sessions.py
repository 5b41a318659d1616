"""Sessions of a chat: the conversations that ``/new`` separates, and the questions that are being edited or
are closed.

A message belongs to the latest session that had begun at its place in the chat, however late it is delivered:
so a second delivery of a message from before a ``/new`` finds the thread that has the first delivery.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from perdure.channels.addresses import ChatAddress
from perdure.database.base import handle_of
from perdure.engine import documents
from perdure.engine.documents import Document
from perdure.model.records import CHAT_SESSIONS, SERVER, Partition
from perdure.runtime import Runtime

_COLLECTION, _NAME = "channel", "sessions"
_KEPT = 100


class SessionList(NamedTuple):
    """Sessions of a chat.

    Attributes:
        begun: For each ``/new`` its position, and the position after which its session begins.
        editing: The interrupt whose changed arguments are awaited as text, or empty.
        closed: The runs whose questions were closed by ``/stop`` or ``/new``.
        noticed: The keys of deliveries that were answered by a notice alone.
    """

    begun: tuple[tuple[int, int], ...] = ()
    editing: str = ""
    closed: tuple[str, ...] = ()
    noticed: tuple[str, ...] = ()

    @classmethod
    def read(cls, document: Document | None) -> SessionList:
        """Decode the stored document of a chat."""
        if document is None:
            return cls()
        body: Mapping[str, Any] = document.body
        return cls(
            tuple((at, start) for at, start in body["begun"]),
            body["editing"],
            tuple(body.get("closed", ())),
            tuple(body.get("noticed", ())),
        )

    def dump(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {
            "begun": [list(each) for each in self.begun[-_KEPT:]],
            "editing": self.editing,
            "closed": list(self.closed[-_KEPT:]),
            "noticed": list(self.noticed[-_KEPT:]),
        }

    def find_name(self, position: int) -> str:
        """Return the name of the session to which a message belongs."""
        return self.list_names(position)[-1]

    def list_names(self, position: int) -> list[str]:
        """Return the names of the sessions that had begun at a place in the chat, the latest last."""
        return ["", *(str(each) for each in sorted({start for _, start in self.begun if start < position}))]


class Sessions:
    """Sessions of the chats of a channel.

    Args:
        runtime: The runtime.
        tenant: The tenant of the chats.
        channel: The name of the channel.
    """

    def __init__(self, runtime: Runtime, tenant: str, channel: str) -> None:
        self._runtime = runtime
        self._database = handle_of(runtime.database)
        self._tenant = tenant
        self._channel = channel

    async def load(self, chat: str, topic: str) -> SessionList:
        """Return the sessions of a chat's topic."""
        program = documents.get(self._partition(chat, topic), _COLLECTION, _NAME)
        return SessionList.read(await self._database.arun(program))

    async def begin(self, chat: str, topic: str, at: int, after: int) -> bool:
        """Begin the session of the ``/new`` at position ``at``, for messages after position ``after``. Return
        False if it was begun before."""

        def add(sessions: SessionList) -> SessionList:
            if any(position == at for position, _ in sessions.begun):
                return sessions
            return sessions._replace(begun=(*sessions.begun, (at, after)))

        return await self._change(chat, topic, add)

    async def note_notice(self, chat: str, topic: str, key: str, editing: str = "") -> bool:
        """Note that a delivery is answered by a notice alone. Return False if that was noted before.

        Args:
            chat: The provider's id of the chat.
            topic: The provider's id of the topic, or empty.
            key: The key of the delivery.
            editing: The interrupt whose changed arguments the notice asks for, or empty.
        """

        def add_key(sessions: SessionList) -> SessionList:
            if key in sessions.noticed:
                return sessions
            return sessions._replace(editing=editing or sessions.editing, noticed=(*sessions.noticed, key))

        return await self._change(chat, topic, add_key)

    async def end_editing(self, chat: str, topic: str, interrupt_id: str) -> None:
        """Note that the changed arguments of an interrupt have come. The node's next question has the same
        id, and a text must not count as its changed arguments."""

        def clear(sessions: SessionList) -> SessionList:
            if sessions.editing == interrupt_id:
                return sessions._replace(editing="")
            return sessions

        await self._change(chat, topic, clear)

    async def close(self, chat: str, topic: str, run_id: str) -> None:
        """Note that the questions of a run are closed."""

        def note(sessions: SessionList) -> SessionList:
            if run_id in sessions.closed:
                return sessions
            return sessions._replace(closed=(*sessions.closed, run_id))

        await self._change(chat, topic, note)

    async def _change(self, chat: str, topic: str, change: Callable[[SessionList], SessionList]) -> bool:
        """Store the changed sessions of a chat, and return False if they are as before."""
        is_changed = False

        def alter(before: Document | None) -> Mapping[str, Any] | None:
            nonlocal is_changed
            sessions = SessionList.read(before)
            changed = change(sessions)
            is_changed = changed != sessions
            if is_changed:
                return changed.dump()
            return None

        now, fresh = await self._runtime.now(), self._database.draw_version()
        program = documents.change(self._partition(chat, topic), _COLLECTION, _NAME, alter, now, fresh)
        await self._database.arun(program)
        return is_changed

    def _partition(self, chat: str, topic: str) -> Partition:
        name = ChatAddress(self._channel, chat, topic).thread_id
        return Partition(self._tenant, f"{CHAT_SESSIONS}{name}", SERVER)
