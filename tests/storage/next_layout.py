"""The next layout of each backend, made for the tests: a step that a later release could have."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from perdure.storage.d1 import driver as d1
from perdure.storage.d1 import schema as d1_schema
from perdure.storage.postgres import opening as postgres
from perdure.storage.postgres import schema as postgres_schema
from perdure.storage.postgres import statements as postgres_statements
from perdure.storage.redis import driver as redis
from perdure.storage.sql import migrations
from perdure.storage.sqlite import driver as sqlite

SQL_STEP = (
    "ALTER TABLE perdure_tag ADD COLUMN extra INTEGER",
    "CREATE TABLE perdure_extra (t INTEGER NOT NULL, body BLOB NOT NULL)",
    "INSERT INTO perdure_extra (t, body) SELECT pk, X'00' FROM perdure_thread",
    "CREATE INDEX perdure_extra_thread ON perdure_thread (thread)",
)
FILE_STEP = ("CREATE TABLE perdure_file_extra (one INTEGER)",)
POSTGRES_STEP = (
    "ALTER TABLE {schema}.tag ADD COLUMN extra bigint",
    "CREATE TABLE {schema}.extra (t bigint NOT NULL, body bytea NOT NULL)",
    "INSERT INTO {schema}.extra (t, body) SELECT pk, '' FROM {schema}.thread",
    postgres_schema.grant_statement("extra"),
)
STOPPING_STEP = (
    "DO $perdure$ DECLARE _old regprocedure; BEGIN FOR _old IN SELECT oid FROM pg_proc"
    " WHERE pronamespace = $name${schema}$name$::regnamespace AND proname ~ '^(commit|fetch)_[0-9]+$'"
    " LOOP EXECUTE concat('DROP FUNCTION ', _old); END LOOP; END $perdure$",
)
"""A step of PostgreSQL after which processes of the release before can neither read nor write."""


@contextmanager
def next_layout(postgres_step: tuple[str, ...] = POSTGRES_STEP) -> Iterator[None]:
    """Within the block this process is one of the next release: what it opens has the next layout."""
    with pytest.MonkeyPatch.context() as patch:
        number = sqlite.SCHEMA_VERSION + 1
        for module in (migrations, sqlite, d1, d1_schema):
            patch.setattr(module, "SCHEMA_VERSION", number)
        patch.setitem(migrations.STEPS, number, SQL_STEP)
        patch.setitem(migrations.FILE_STEPS, number, FILE_STEP)
        number = postgres.SCHEMA_VERSION + 1
        for module in (postgres, postgres_schema, postgres_statements):
            patch.setattr(module, "SCHEMA_VERSION", number)
        patch.setitem(postgres_schema.STEPS, number, postgres_step)
        patch.setattr(redis, "SCHEMA_VERSION", redis.SCHEMA_VERSION + 1)
        yield
