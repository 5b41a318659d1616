"""Search by vectors through pgvector: its statements, its HNSW index, and the check of its table."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

import psycopg

from perdure.errors import Unavailable
from perdure.model.ops import Find, FindNearest, FindOutdated, IndexHit, RankedItem, end_of
from perdure.model.records import ITEM, STORE, Partition
from perdure.storage.postgres import codec, vector_rows
from perdure.storage.postgres.schema import SCHEMA_VERSION, quote
from perdure.storage.postgres.statements import Statement, make_statement, to_text
from perdure.storage.postgres.url import PostgresUrl
from perdure.storage.postgres.vector_table import MOST_DIMS, SENT, Extension

MOST_DIMS_OF_GRAPH = 2_000
"""Maximum number of dimensions for which HNSW is used; longer vectors are all compared."""

EXACT_MOST = 2_000
"""The number of vectors in the searched namespaces up to which all are compared, in a table of any size."""

_TEXT, _BIGINT, _BYTEA, _FLOATS, _BYTEAS = 25, 20, 17, 1021, 1001
_INFERRED = 0
_ANY = 1 << 62
_BUILD_MEMORY = "256MB"

Connecting = Callable[[PostgresUrl], AbstractContextManager[psycopg.Connection]]
"""Opens a connection for statements that only maintenance has."""


class VectorSearch:
    """Search in a schema that has the table of vectors.

    Args:
        settings: The settings of the database's URL.
        extension: The state of pgvector in it.
        connecting: Opens a connection of its own for maintenance.
    """

    dims_max = MOST_DIMS

    def __init__(self, settings: PostgresUrl, extension: Extension, connecting: Connecting) -> None:
        self._settings = settings
        self._extension = extension
        self._connecting = connecting
        self._graphs = set(extension.graphs)
        self._sends = True
        self._schema = schema = quote(settings.schema)
        within = "p.space = 'store' AND p.tenant = $1 AND p.thread >= $2 AND ($3 = '' OR p.thread < $3)"
        texts = (_TEXT, _TEXT, _TEXT)
        self._nearest = make_statement(
            f"SELECT * FROM {schema}.nearest($1, $2, $3, $4, $5, $6, $7, $8)",
            (*texts, _BIGINT, _FLOATS, _BYTEAS, _BIGINT, _BIGINT),
            binary=False,
        )
        # Three ranges of an index, all of them empty as long as there is one model. The end of each range is
        # looked up first, as searching an empty range in many namespaces would cost more.
        end = f"(SELECT model FROM {schema}.vector {{}} LIMIT 1)"
        ranges = (
            ("v.model < $4", end.format("ORDER BY model") + " < $4"),
            ("v.model > $4 AND v.model < $5", end.format("WHERE model > $4 ORDER BY model") + " < $5"),
            ("v.model > $5", end.format("ORDER BY model DESC") + " > $5"),
        )
        outdated = " UNION ALL ".join(
            f"(SELECT DISTINCT p.tenant, p.thread, p.space, v.item FROM {schema}.vector v"
            f" JOIN {schema}.thread p ON p.pk = v.t WHERE {models} AND {within} AND {is_not_empty} LIMIT $6)"
            for models, is_not_empty in ranges
        )
        self._outdated = make_statement(
            f"SELECT tenant, thread, space FROM ({outdated}) x LIMIT $6",
            (*texts, _BYTEA, _BYTEA, _BIGINT),
            binary=False,
        )
        self._commit = make_statement(
            f"SELECT {schema}.vectors_sent(c.z, $1, $2, $3, $5, $6, $7, $8)"
            f" FROM (SELECT set_config('{SENT}', 'on', true),"
            f" {schema}.commit_{SCHEMA_VERSION}($1, $2, $3, $4) AS z OFFSET 0) c",
            (*codec.ARRAYS, *codec.ARRAYS[1:], _INFERRED),
        )

    def commit(self, writes: Sequence[codec.Write]) -> tuple[Statement, vector_rows.Values] | None:
        """Return the statement that executes requests and adds the vectors of the entries that they put, and
        its parameters after those of ``commit_N``; ``None`` if there are no vectors to be sent."""
        if not self._sends:
            return None
        values = vector_rows.pack_vectors(writes, self._extension.type_id)
        if values is None:
            return None
        return (self._commit, values)

    def stop_sending(self) -> None:
        """Leave the vectors to the database from now on, as the pgvector that this process found is gone."""
        self._sends = False

    def find(self, effect: Find) -> tuple[Statement, list[bytes | None]]:
        """Return the statement of a ``Find`` by vectors and its parameters, as text."""
        if not isinstance(effect, FindNearest | FindOutdated) or effect.tenant is None:
            raise TypeError(f"{type(effect).__name__} is not a request of one tenant for vectors")
        where: list[bytes | None] = [
            to_text(effect.tenant),
            to_text(effect.prefix),
            to_text(end_of(effect.prefix)),
        ]
        if isinstance(effect, FindOutdated):
            models = sorted(effect.models)
            return self._outdated, [*where, to_text(models[0]), to_text(models[-1]), to_text(effect.limit)]
        numbers = struct.unpack(f"<{len(effect.vector) // 4}f", effect.vector)
        models_sent = ",".join(f'"\\\\x{model.hex()}"' for model in effect.models)
        exact = EXACT_MOST
        if effect.exact or not self._extension.has_graphs:
            exact = _ANY
        return self._nearest, [
            *where,
            to_text(effect.until),
            f"{{{','.join(map(repr, numbers))}}}".encode(),
            f"{{{models_sent}}}".encode(),
            to_text(effect.limit),
            to_text(exact),
        ]

    def read_hit(self, at: Partition, row: Sequence[bytes | None]) -> IndexHit:
        """Return the result for a row, given the columns after those of its partition."""
        if not row:
            return IndexHit(at)
        *item, distance, content, is_exact = row
        (far,) = struct.unpack(">d", distance or b"")
        ranked = RankedItem(1 - far, content or b"", is_exact == b"\x01")
        return IndexHit(at, codec.read_record(ITEM, item), ranked=ranked)

    def method(self, dims: int) -> str:
        """Return in words how vectors of a length are compared."""
        if dims > self.dims_max:
            return f"in this process: pgvector takes {self.dims_max:,} dimensions at most"
        if self._extension.has_graphs and dims in self._graphs:
            return "by pgvector, through HNSW where many are searched"
        if not self._extension.has_graphs:
            return "by pgvector, all of them: HNSW needs its release 0.8 or later"
        if dims > MOST_DIMS_OF_GRAPH:
            return f"by pgvector, all of them: HNSW takes {MOST_DIMS_OF_GRAPH:,} dimensions at most"
        return "by pgvector, all of them, as there is no HNSW index: `perdure store reindex` creates it"

    def prepare(self, dims: int) -> int:
        """Replace the vectors that differ from those of their entries, and create the HNSW index for vectors
        of a length; return the number of items whose vectors were wrong. Writers need not wait.

        Raises:
            Unavailable: Another process is creating the index.
        """
        schema, home = self._schema, quote(self._extension.home)
        name = f"vector_hnsw_{dims}"
        with self._connecting(self._settings) as connection:
            row = connection.execute(
                f"WITH x AS MATERIALIZED (SELECT * FROM {schema}.vectors_damaged(NULL)), gone AS (DELETE FROM"
                f" {schema}.vector v USING x WHERE v.t = x.t AND v.item = x.item), again AS (UPDATE"
                f" {schema}.document d SET updated_at = d.updated_at FROM x WHERE d.t = x.t AND d.collection"
                " = 'search' AND d.name = '=' || x.item) SELECT count(*) FROM x".encode()
            ).fetchone()
            if dims <= MOST_DIMS_OF_GRAPH and self._extension.has_graphs:
                lock = f"SELECT pg_try_advisory_lock(hashtextextended('{name} ' || %s, 0))".encode()
                if connection.execute(lock, (self._settings.schema,)).fetchone() != (True,):
                    raise Unavailable(
                        f"{self._settings.name}: another process creates the HNSW index; wait until it is "
                        "done"
                    )
                if not self._has_graph(connection, dims):
                    connection.execute(f"SET maintenance_work_mem = '{_BUILD_MEMORY}'".encode())
                    # An index whose creation was interrupted stays invalid.
                    connection.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {schema}.{name}".encode())
                    connection.execute(
                        f"CREATE INDEX CONCURRENTLY {name} ON {schema}.vector USING hnsw"
                        f" ((embedding::{home}.vector({dims})) {home}.vector_cosine_ops)"
                        f" WHERE dims = {dims}".encode()
                    )
                self._graphs.add(dims)
        if row:
            return int(row[0])
        return 0

    def examine(self, partition: Partition | None) -> list[str]:
        """Return the items of a namespace whose vectors are not those of their entries."""
        if partition is None or partition.space != STORE:
            return []
        with self._connecting(self._settings) as connection:
            rows = connection.execute(
                f"SELECT x.item FROM {self._schema}.thread p, {self._schema}.vectors_damaged(p.pk) x"
                " WHERE p.space = %s AND p.tenant = %s AND p.thread = %s ORDER BY x.item".encode(),
                [codec.escape(part) for part in (partition.space, partition.tenant, partition.thread)],
            ).fetchall()
        return [
            f"the vectors of item {codec.unescape(item)!r} are not those of its entry in the search index; "
            "`perdure store reindex` makes them anew"
            for (item,) in rows
        ]

    def trust(self, partition: Partition) -> bool:
        """Return False: wrong vectors are not accepted, but replaced by ``prepare``."""
        return False

    def _has_graph(self, connection: psycopg.Connection, dims: int) -> bool:
        row = connection.execute(
            "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass(%s)",
            (f"{self._schema}.vector_hnsw_{dims}",),
        ).fetchone()
        return row == (True,)
