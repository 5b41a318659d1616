"""The candidates that talk to a server: Perdure's drivers and what LangGraph users have there today."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any
from urllib.parse import parse_qs, urlsplit

from bench.candidate import Candidate, Place, Saver, perdure_missing
from bench.capacity import METER

POOL = 20
_CALLERS = 64


@asynccontextmanager
async def _perdure(place: Place) -> AsyncIterator[Saver]:
    perdure: Any = importlib.import_module("perdure")
    if place.url.startswith("dynamodb:"):
        METER.install()
    async with perdure.connect(place.url, migrate=True) as db:
        yield db.checkpointer()


@asynccontextmanager
async def _postgres(place: Place) -> AsyncIterator[Saver]:
    """With a pool, as its documentation asks of a server; the options are those of `from_conn_string`."""
    from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
    from psycopg.rows import dict_row
    from psycopg_pool import AsyncConnectionPool

    options = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
    url = place.url.partition("?")[0]
    async with AsyncConnectionPool(url, min_size=POOL, max_size=POOL, kwargs=options) as pool:
        await pool.wait()
        saver = AsyncPostgresSaver(pool)  # type: ignore[arg-type]
        await saver.setup()
        yield saver


@asynccontextmanager
async def _plain_redis(place: Place) -> AsyncIterator[Saver]:
    """With a pool that waits: the default one raises when more callers come than it has connections."""
    import redis.asyncio as redis
    from langgraph_checkpoint_plainredis import AsyncRedisSaver

    pool = redis.BlockingConnectionPool.from_url(
        place.url.partition("?")[0], max_connections=_CALLERS, timeout=60, protocol=2
    )
    client = redis.Redis(connection_pool=pool)
    try:
        yield AsyncRedisSaver(client)
    finally:
        await client.aclose()
        await pool.aclose()


@asynccontextmanager
async def _aws(place: Place) -> AsyncIterator[Saver]:
    from botocore.config import Config
    from langgraph_checkpoint_aws import DynamoDBSaver

    parts = urlsplit(place.url)
    options = {name: values[0] for name, values in parse_qs(parts.query).items()}
    table = f"{parts.hostname or parts.netloc}-aws"
    saver = DynamoDBSaver(
        table,
        region_name=options.get("region", "us-east-1"),
        endpoint_url=options["endpoint"],
        boto_config=Config(max_pool_connections=_CALLERS),
    )
    # A process that opens the table anew finds it.
    with suppress(saver.client.exceptions.ResourceInUseException):
        saver.client.create_table(
            TableName=table,
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
    METER.install()
    yield saver


def _needs(module: str, package: str) -> Callable[[], str | None]:
    def find_missing() -> str | None:
        try:
            found = importlib.util.find_spec(module) is not None
        except ModuleNotFoundError:
            found = False
        return None if found else f"the package {package} is not installed"

    return find_missing


def _driver(module: str, client: str, extra: str) -> Callable[[], str | None]:
    def find_missing() -> str | None:
        if (why := perdure_missing()) is not None:
            return why
        try:
            if importlib.util.find_spec(module) is None:
                return f"this tree has no {module}"
        except ModuleNotFoundError:
            return f"this tree has no {module}"
        return _needs(client, f"perdure[{extra}]")()

    return find_missing


def _ours(backend: str, label: str, missing: Callable[[], str | None]) -> Candidate:
    return Candidate(
        f"{backend}-perdure",
        label,
        "#0b6e99",
        _perdure,
        on_disk=False,
        ours=True,
        missing=missing,
        backend=backend,
    )


_POSTGRES_SAVER = _needs("langgraph.checkpoint.postgres", "langgraph-checkpoint-postgres")

REMOTE = (
    Candidate(
        "postgres-stock",
        "AsyncPostgresSaver",
        "#c0392b",
        _postgres,
        on_disk=False,
        missing=_POSTGRES_SAVER,
        backend="postgres",
    ),
    Candidate(
        "postgres-delta",
        "DeltaChannel on AsyncPostgresSaver",
        "#7d4fa8",
        _postgres,
        on_disk=False,
        delta=True,
        missing=_POSTGRES_SAVER,
        backend="postgres",
    ),
    _ours("postgres", "Perdure", _driver("perdure.storage.postgres.opening", "psycopg", "postgres")),
    Candidate(
        "redis-stock",
        "plain Redis saver",
        "#c0392b",
        _plain_redis,
        on_disk=False,
        missing=_needs("langgraph_checkpoint_plainredis", "langgraph-checkpoint-plainredis"),
        backend="redis",
    ),
    _ours("redis", "Perdure", _driver("perdure.storage.redis.driver", "redis", "redis")),
    Candidate(
        "dynamodb-stock",
        "AWS DynamoDBSaver",
        "#c0392b",
        _aws,
        on_disk=False,
        missing=_needs("langgraph_checkpoint_aws", "langgraph-checkpoint-aws"),
        backend="dynamodb",
    ),
    _ours("dynamodb", "Perdure", _driver("perdure.storage.dynamodb.driver", "boto3", "dynamodb")),
    _ours("d1", "Perdure", _driver("perdure.storage.d1.driver", "httpx", "d1")),
)
