"""The application's own tables beside those of the checkpoints, and their migrations."""

from __future__ import annotations

from sqlalchemy import (
    Boolean,
    Column,
    Connection,
    Engine,
    Float,
    ForeignKey,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    Update,
    create_engine,
    event,
    inspect,
    make_url,
    select,
    text,
    update,
)

metadata = MetaData()
users = Table(
    "movie_users",
    metadata,
    Column("id", String(36), primary_key=True),
    Column("email", String(320), unique=True, nullable=False),
    Column("password", String(200), nullable=False),
)
tokens = Table(
    "movie_refresh_tokens",
    metadata,
    Column("digest", String(64), primary_key=True),
    Column("family", String(36), index=True, nullable=False),
    Column("user_id", ForeignKey("movie_users.id", ondelete="CASCADE"), nullable=False),
    Column("expires_at", Float, nullable=False),
    Column("revoked_at", Float),
)
sessions = Table(
    "movie_sessions",
    metadata,
    Column("id", String(36), primary_key=True),
    Column("user_id", ForeignKey("movie_users.id", ondelete="CASCADE"), index=True, nullable=False),
)
messages = Table(
    "movie_messages",
    metadata,
    Column("number", Integer, primary_key=True),
    Column("id", String(255), unique=True, nullable=False),
    Column("session_id", ForeignKey("movie_sessions.id", ondelete="CASCADE"), index=True, nullable=False),
    Column("question", Text, nullable=False),
    Column("answer", Text),
    Column("has_failed", Boolean, nullable=False, default=False),
)
versions = Table("movie_schema", MetaData(), Column("version", Integer, primary_key=True))


def answer_message(message_id: str, answer: str) -> Update:
    """Return the statement that stores the answer of a message, unless it has one."""
    row = (messages.c.id == message_id) & messages.c.answer.is_(None)
    return update(messages).where(row).values(answer=answer)


def _first(connection: Connection) -> None:
    metadata.create_all(connection)


STEPS = (_first,)
"""Migrations in order; a released one is never changed."""


def open_engine(url: str) -> Engine:
    """Return an engine for the database at a URL of Perdure's. On SQLite the tables are in a file beside it:
    a process must not open one file with two copies of SQLite, Python's and Perdure's."""
    found = make_url(url).set(query={})
    if found.drivername == "sqlite":
        found = found.set(database=f"{(found.database or '').removesuffix('.db')}.app.db")
    else:
        found = found.set(drivername="postgresql+psycopg")
    engine = create_engine(found, pool_pre_ping=True)
    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", lambda one, _: one.execute("PRAGMA foreign_keys = ON"))
    return engine


def migrate(engine: Engine) -> None:
    """Apply the steps that the database lacks; of several processes at once one applies them."""
    with engine.begin() as connection:
        if engine.dialect.name == "sqlite":
            connection.execute(text("BEGIN IMMEDIATE"))
        else:
            connection.execute(text("SELECT pg_advisory_xact_lock(8142)"))
        if not inspect(connection).has_table(versions.name):
            versions.create(connection)
        done = len(connection.execute(select(versions)).all())
        for number, step in enumerate(STEPS[done:], done + 1):
            step(connection)
            connection.execute(versions.insert().values(version=number))
