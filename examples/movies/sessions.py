"""Sessions of users, and their messages with the answers."""

from __future__ import annotations

import uuid
from typing import Any

from fastapi import HTTPException
from sqlalchemy import Engine, insert, select, update
from sqlalchemy.exc import IntegrityError

from .database import answer_message, messages, sessions


class Sessions:
    """Sessions in a database."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.are_with_threads = engine.dialect.name != "sqlite"
        """True if the tables are in the database of the threads."""

    def begin(self, user_id: str) -> str:
        """Add a session, and return its id, which is its thread's too."""
        session_id = str(uuid.uuid4())
        with self._engine.begin() as connection:
            connection.execute(insert(sessions).values(id=session_id, user_id=user_id))
        return session_id

    def require(self, session_id: str, user_id: str) -> None:
        """Raise 404 unless the session is the user's; another's is not there."""
        mine = (sessions.c.id == session_id) & (sessions.c.user_id == user_id)
        with self._engine.begin() as connection:
            if connection.execute(select(sessions).where(mine)).first() is None:
                raise HTTPException(404, "There is no such session.")

    def rows(self, session_id: str) -> list[dict[str, Any]]:
        """Return the messages of a session in order."""
        wanted = select(messages).where(messages.c.session_id == session_id).order_by(messages.c.number)
        with self._engine.begin() as connection:
            return [dict(row._mapping) for row in connection.execute(wanted)]

    def add(self, session_id: str, message_id: str, text: str) -> None:
        """Add a message, unless it is there: it was sent again."""
        row = insert(messages).values(id=message_id, session_id=session_id, question=text)
        try:
            with self._engine.begin() as connection:
                connection.execute(row)
        except IntegrityError:
            return

    def answer(self, message_id: str, text: str) -> None:
        """Store an answer, unless there is one."""
        with self._engine.begin() as connection:
            connection.execute(answer_message(message_id, text))

    def fail(self, message_id: str) -> None:
        """Mark a message as failed: it holds up no later one, and may be sent again."""
        with self._engine.begin() as connection:
            connection.execute(update(messages).where(messages.c.id == message_id).values(has_failed=True))
