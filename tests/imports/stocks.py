"""Every kind of source, filled with threads by a genuine saver, and compared with what came of an import."""

from __future__ import annotations

import json
import re
import secrets
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import psycopg
from langgraph.checkpoint.base import WRITES_IDX_MAP
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph_checkpoint_aws import DynamoDBSaver
from langgraph_checkpoint_plainredis import RedisSaver

import perdure
from perdure.history.neutral_messages import to_neutral
from perdure.imports.histories.conversations import read_history
from perdure.imports.kinds import SourceKind, open_source
from perdure.imports.source import Source
from perdure.storage.d1.url import D1Url
from tests.imports import threads
from tests.servers import d1, dynamodb, postgres, valkey

Made = dict[str, threads.Shape]
Make = Callable[[Any], Made]
"""Makes threads with a saver."""

PLAIN_TABLES = (
    "CREATE TABLE checkpoints (thread_id TEXT, checkpoint_id TEXT, parent_id TEXT, state, created_at)",
    "CREATE TABLE writes (thread_id TEXT, checkpoint_id TEXT, task_id TEXT, idx INT, channel TEXT, value)",
)


@dataclass(frozen=True)
class Stock:
    """A filled source: its place, its saver and threads, and the view in which an import is equal to it."""

    kind: SourceKind
    where: str
    saver: Any
    made: Made
    view: Callable[[Any, str, threads.Shape], Any] = threads.seen

    def opened(self) -> Source:
        return open_source(self.kind, self.where)

    def check(self, db: perdure.SyncDatabase) -> None:
        """Compare every thread with what the saver says."""
        for thread, shape in self.made.items():
            if self.kind is SourceKind.HISTORY:
                assert read_history(db, thread) == messages(self.saver, thread), thread
                continue
            saver = db.checkpointer()
            assert self.view(saver, thread, shape) == self.view(self.saver, thread, shape), thread
            if self.kind is not SourceKind.PLAIN:
                assert threads.raw(saver, thread) == threads.raw(self.saver, thread), thread


def messages(saver: Any, thread: str) -> list[Any]:
    """The messages of a thread's latest state in neutral form."""
    found = saver.get_tuple(threads.config(thread))
    return to_neutral(found.checkpoint["channel_values"]["messages"])


def bare(saver: Any, thread: str, shape: threads.Shape) -> list[Any]:
    """What the plain layout keeps of a thread's history: all but metadata and times."""
    states = shape.graph(saver).get_state_history(threads.config(thread))
    return [
        (
            state.values,
            state.next,
            state.interrupts,
            [(task.id, task.name, task.interrupts) for task in state.tasks],
            state.config["configurable"]["checkpoint_id"],
            (state.parent_config or threads.config(""))["configurable"].get("checkpoint_id"),
        )
        for state in states
    ]


@contextmanager
def sqlite(folder: Path, make: Make) -> Iterator[Stock]:
    path = folder / "stock.db"
    with SqliteSaver.from_conn_string(str(path)) as saver:
        yield Stock(SourceKind.LANGGRAPH_SQLITE, str(path), saver, make(saver))


def postgres_url() -> str:
    """The URL of a new database."""
    server, name = postgres.shared(), f"stock_{secrets.token_hex(6)}"
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return server.url(name)


@contextmanager
def of_postgres(folder: Path, make: Make) -> Iterator[Stock]:
    url = postgres_url()
    with PostgresSaver.from_conn_string(url) as saver:
        saver.setup()
        yield Stock(SourceKind.LANGGRAPH_POSTGRES, url, saver, make(saver))


@contextmanager
def redis(folder: Path, make: Make) -> Iterator[Stock]:
    server = valkey.started()
    saver = RedisSaver(url=server.url)
    try:
        # In this saver the branches of a thread overwrite each other's values.
        made = {name: shape for name, shape in make(saver).items() if shape is not threads.SHAPES["forked"]}
        yield Stock(SourceKind.LANGGRAPH_REDIS, server.url, saver, made)
    finally:
        saver.close()
        server.stop()


@contextmanager
def dynamodb_table() -> Iterator[tuple[str, Any]]:
    """The URL of an empty table of DynamoDBSaver's, and the saver."""
    with dynamodb.empty() as url:
        name = url.removeprefix("dynamodb://").partition("?")[0]
        where: dict[str, Any] = {"region_name": dynamodb.REGION, "endpoint_url": dynamodb.endpoint()}
        client = boto3.client("dynamodb", **where)
        client.create_table(
            TableName=name,
            KeySchema=[
                {"AttributeName": "PK", "KeyType": "HASH"},
                {"AttributeName": "SK", "KeyType": "RANGE"},
            ],
            AttributeDefinitions=[
                {"AttributeName": "PK", "AttributeType": "S"},
                {"AttributeName": "SK", "AttributeType": "S"},
            ],
            BillingMode="PAY_PER_REQUEST",
        )
        client.close()
        saver = DynamoDBSaver(name, enable_checkpoint_compression=True, **where)
        _remember_answers(saver.client)
        yield url, saver


def _remember_answers(client: Any) -> None:
    """Let a client ask for the same once: the saver reads an item a request, and a whole history each time.
    Nobody else writes, and what was read under a partition key is forgotten when the client writes there."""
    held: dict[str, dict[str, Any]] = {}
    get, query, put = client.get_item, client.query, client.put_item

    def answer(ask: Any, key: str, asked: dict[str, Any]) -> Any:
        answers = held.setdefault(key, {})
        name = repr(asked)
        if name not in answers:
            answers[name] = ask(**asked)
        return answers[name]

    def put_item(**asked: Any) -> Any:
        done = put(**asked)
        held.pop(asked["Item"]["PK"]["S"], None)
        return done

    client.get_item = lambda **asked: answer(get, asked["Key"]["PK"]["S"], asked)
    client.query = lambda **asked: answer(
        query, next(iter(asked["ExpressionAttributeValues"].values()))["S"], asked
    )
    client.put_item = put_item


@contextmanager
def aws(folder: Path, make: Make) -> Iterator[Stock]:
    with dynamodb_table() as (url, saver):
        yield Stock(SourceKind.AWS_DYNAMODB, url, saver, make(saver))


def plain_rows(make: Make) -> tuple[InMemorySaver, Made, list[tuple[str, tuple[Any, ...]]]]:
    """Threads made by LangGraph's saver in memory, and the statements that store them in the plain layout,
    which has no namespaces."""
    saver = InMemorySaver()
    made = {name: shape for name, shape in make(saver).items() if shape is not threads.SHAPES["nested"]}
    rows: list[tuple[str, tuple[Any, ...]]] = []
    for thread in made:
        for found in saver.list(threads.config(thread)):
            name = found.checkpoint["id"]
            parent = (found.parent_config or {"configurable": {}})["configurable"].get("checkpoint_id")
            values = (thread, name, parent, _packed(found.checkpoint).hex(), found.checkpoint["ts"])
            rows.append(("INSERT INTO checkpoints VALUES (?1, ?2, ?3, unhex(?4), ?5)", values))
            for n, (task, channel, value) in enumerate(found.pending_writes or ()):
                at = str(WRITES_IDX_MAP.get(channel, n))
                write = (thread, name, task, at, channel, _packed(value).hex())
                rows.append(("INSERT INTO writes VALUES (?1, ?2, ?3, ?4, ?5, unhex(?6))", write))
    return saver, made, rows


def _packed(value: Any) -> bytes:
    return JsonPlusSerializer().dumps_typed(value)[1]


@contextmanager
def plain_file(folder: Path, make: Make) -> Iterator[Stock]:
    path = folder / "plain.db"
    saver, made, rows = plain_rows(make)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.create_function("unhex", 1, bytes.fromhex)
        for table in PLAIN_TABLES:
            connection.execute(table)
        for statement, values in rows:
            connection.execute(statement, values)
    yield Stock(SourceKind.PLAIN, str(path), saver, made, bare)


@contextmanager
def plain_d1(folder: Path, make: Make) -> Iterator[Stock]:
    saver, made, rows = plain_rows(make)
    with d1.empty() as url:
        with D1Url.of(url).session() as transport:
            transport.batch([(table, ()) for table in PLAIN_TABLES])
            for at in range(0, len(rows), 20):
                transport.batch(rows[at : at + 20])
        yield Stock(SourceKind.PLAIN, url, saver, made, bare)


@contextmanager
def plain_postgres(folder: Path, make: Make) -> Iterator[Stock]:
    saver, made, rows = plain_rows(make)
    url = postgres_url()
    with psycopg.connect(url) as connection, psycopg.RawCursor(connection) as cursor:
        cursor.execute("CREATE FUNCTION unhex(text) RETURNS bytea RETURN decode($1, 'hex')")
        for table in PLAIN_TABLES:
            cursor.execute(re.sub(r"(state|value)\b", r"\1 bytea", table).replace("_at)", "_at timestamptz)"))
        for statement, values in rows:
            cursor.execute(statement.replace("?", "$"), values)
    yield Stock(SourceKind.PLAIN, url, saver, made, bare)


@contextmanager
def history(folder: Path, make: Make) -> Iterator[Stock]:
    path = folder / "all.jsonl"
    saver = InMemorySaver()
    made = {name: shape for name, shape in make(saver).items() if shape.graph is not threads.long}
    lines = [{"thread_id": thread, "messages": messages(saver, thread)} for thread in made]
    path.write_text("\n".join(map(json.dumps, lines)))
    yield Stock(SourceKind.HISTORY, str(path), saver, made)


STOCKS: dict[str, Callable[[Path, Make], AbstractContextManager[Stock]]] = {
    "langgraph-sqlite": sqlite,
    "langgraph-postgres": of_postgres,
    "langgraph-redis": redis,
    "aws-dynamodb": aws,
    "plain": plain_file,
    "plain-d1": plain_d1,
    "plain-postgres": plain_postgres,
    "history": history,
}
"""What fills a source of each kind, in a folder."""
