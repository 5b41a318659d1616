"""Vectors of the store's items if pgvector is installed: a table that the database derives from the entries
of the search index, and the functions that search it.

Triggers maintain it, so that every write of an entry, by any release and any command, writes its vectors in
the same commit. Without the table, vectors are compared in the process, as on other backends.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from perdure.model.records import ITEM
from perdure.storage.postgres.schema import grant_statement, quote

SENT = "perdure.vectors"
"""Setting of a transaction that is on if the commit itself sends the vectors of its entries: if PostgreSQL
has to read them from the entries, this costs more than the rest of a put."""

MOST_DIMS = 16_000
"""Maximum number of dimensions of a vector that pgvector stores."""

EF_SEARCH = 100
"""Number of candidates in an HNSW search: more than the default of 40, for a recall of 0.95."""

COLLECTION = "search"
"""The collection of the entries; its record without a name is not an entry."""

_IS_ENTRY = f"collection = '{COLLECTION}' AND {{row}}.name <> ''"


class Extension(NamedTuple):
    """State of pgvector in a database.

    Attributes:
        home: The schema of its types, empty if it is not installed.
        has_graphs: True if an HNSW search continues until enough items of the searched namespaces are found
            (from pgvector 0.8).
        may_be_created: True if it is not installed, and this user may install it.
        has_parts: True if the table of vectors or its trigger function exists.
        is_sound: True if the table and all functions are of this release and fit the extension, which was not
            dropped or moved since.
        type_id: The OID of the type ``vector``, 0 if it is not installed.
        graphs: The numbers of dimensions for which there is an HNSW index.
    """

    home: str
    has_graphs: bool
    may_be_created: bool
    has_parts: bool
    is_sound: bool
    type_id: int = 0
    graphs: Sequence[int] = ()


CREATE = "CREATE EXTENSION IF NOT EXISTS vector SCHEMA public"
STATE = (
    "SELECT coalesce((SELECT n.nspname FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace"
    " WHERE e.extname = 'vector'), ''),"
    " coalesce((SELECT string_to_array(e.extversion, '.')::int[] >= '{0,8}' FROM pg_extension e"
    " WHERE e.extname = 'vector'), false),"
    " EXISTS (SELECT FROM pg_available_extensions a JOIN pg_available_extension_versions v"
    " ON v.name = a.name AND v.version = a.default_version WHERE a.name = 'vector' AND a.installed_version"
    " IS NULL AND ((SELECT rolsuper FROM pg_roles WHERE rolname = current_user) OR NOT v.superuser"
    " OR v.trusted AND has_database_privilege(current_database(), 'CREATE'))),"
    " to_regclass(%(table)s) IS NOT NULL OR to_regprocedure(%(kept)s) IS NOT NULL,"
    " EXISTS (SELECT FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace"
    " JOIN pg_type y ON y.typnamespace = n.oid AND y.typname = 'vector'"
    " JOIN pg_attribute a ON a.atttypid = y.oid AND a.attname = 'embedding' AND NOT a.attisdropped"
    " JOIN pg_proc f ON f.oid = to_regprocedure(%(kept)s)"
    " WHERE e.extname = 'vector' AND a.attrelid = to_regclass(%(table)s)"
    " AND position('\"' || replace(n.nspname, '\"', '\"\"') || '\".vector FROM' IN f.prosrc) > 0"
    " AND EXISTS (SELECT FROM pg_proc s WHERE s.pronamespace = f.pronamespace"
    " AND s.proname = 'nearest' AND 'enable_sort=off' = ANY (s.proconfig))),"
    " coalesce((SELECT y.oid::bigint FROM pg_extension e JOIN pg_type y ON y.typnamespace = e.extnamespace"
    " AND y.typname = 'vector' WHERE e.extname = 'vector'), 0),"
    " ARRAY(SELECT substr(c.relname, 13)::int FROM pg_index x JOIN pg_class c ON c.oid = x.indexrelid"
    " WHERE x.indrelid = to_regclass(%(table)s) AND x.indisvalid AND c.relname ~ '^vector_hnsw_[0-9]+$')"
)
"""Query for the columns of ``Extension``, with the parameters of ``names``."""

_FUNCTIONS = (
    "vectors_kept()",
    "vectors_damaged(bigint)",
    "nearest(text, text, text, bigint, real[], bytea[], bigint, bigint)",
    "vectors_sent",
    "vectors_of(bytea)",
    "vector_array(bytea, integer)",
    "vector_numbers(bytea)",
)


def names(schema: str) -> dict[str, str]:
    """Return the parameters of ``STATE`` for a schema."""
    home = quote(schema)
    return {"table": f"{home}.vector", "kept": f"{home}.vectors_kept()"}


def setup(name: str, found: Extension) -> tuple[str, ...]:
    """Return the statements that add the table to a schema and fill it; none if it exists or cannot be
    created.

    If the extension was dropped or moved since the table was created, the table and its triggers are removed
    first: these triggers would fail every write of an entry.

    Args:
        name: The schema.
        found: The state of the extension.
    """
    schema, home = quote(name), quote(found.home or "public")
    removal: tuple[str, ...] = ()
    if found.has_parts and not found.is_sound:
        removal = _write_removal(schema)
    if found.is_sound or not (found.home or found.may_be_created):
        return removal
    is_entry = _IS_ENTRY.format(row="{row}")
    triggers = [
        f"CREATE TRIGGER vectors_{event.lower()} AFTER {event} ON {schema}.document FOR EACH ROW"
        f" WHEN ({row}.{is_entry.format(row=row)}) EXECUTE FUNCTION {schema}.vectors_kept()"
        for event, row in (("INSERT", "NEW"), ("UPDATE", "NEW"), ("DELETE", "OLD"))
    ]
    create = [] if found.home else [CREATE]
    return (
        *removal,
        *create,
        f'CREATE TABLE {schema}.vector (t bigint NOT NULL, item text COLLATE "C" NOT NULL, place integer'
        f" NOT NULL, model bytea NOT NULL, content bytea NOT NULL, dims integer NOT NULL, embedding"
        f" {home}.vector, PRIMARY KEY (t, item, place))",
        f"CREATE INDEX vector_model ON {schema}.vector (model, t)",
        _write_numbers_function(schema),
        _write_array_function(schema),
        _write_entry_function(schema),
        _write_trigger_function(schema, home),
        _write_sending_function(schema, home),
        _write_nearest_function(schema, home),
        _write_damage_function(schema),
        *triggers,
        f"INSERT INTO {schema}.vector SELECT d.t, substr(d.name, 2), e.place, e.model, e.content, e.dims,"
        f" e.numbers::{home}.vector FROM {schema}.document d CROSS JOIN LATERAL"
        f" {schema}.vectors_of(d.body) e WHERE d.{is_entry.format(row='d')}",
        grant_statement("vector").replace("{schema}", schema),
    )


def _write_removal(schema: str) -> tuple[str, ...]:
    """Return the statements that remove the table, and the functions with their triggers."""
    functions = (f"DROP FUNCTION IF EXISTS {schema}.{name} CASCADE" for name in _FUNCTIONS)
    return f"DROP TABLE IF EXISTS {schema}.vector", *functions


def _write_numbers_function(schema: str) -> str:
    """Return the function that reads little-endian 32-bit floats, for which PostgreSQL has none."""
    return f"""\
CREATE FUNCTION {schema}.vector_numbers(_b bytea) RETURNS real[]
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $perdure$
  SELECT ARRAY(SELECT (x.s * CASE WHEN x.e = 0 THEN x.m * 2::float8 ^ -149
      ELSE (x.m + 8388608) * 2::float8 ^ (x.e - 150) END)::real
    FROM (SELECT get_byte(_b, p) + (get_byte(_b, p+1) << 8) + ((get_byte(_b, p+2) & 127) << 16) AS m,
        ((get_byte(_b, p+3) & 127) << 1) + (get_byte(_b, p+2) >> 7) AS e,
        1 - (get_byte(_b, p+3) >> 7 << 1) AS s
      FROM generate_series(0, length(_b) - 4, 4) AS p OFFSET 0) x)
$perdure$"""


def _write_entry_function(schema: str) -> str:
    """Return the function that reads an entry of the search index, the MessagePack that
    ``engine.items.search_index`` writes. An encrypted entry yields no rows. An entry without vectors yields a
    row if a search has to refuse it, because no model has been applied to it."""
    return f"""\
CREATE FUNCTION {schema}.vectors_of(_body bytea)
RETURNS TABLE (place integer, model bytea, content bytea, dims integer, numbers real[])
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $perdure$
DECLARE
  _at int := 1;
  _tag int;
  _size int;
  _paths int;
  _count int;
  _vector bytea;
BEGIN
  IF get_byte(_body, 0) <> 148 THEN
    RETURN;
  END IF;
  _size := get_byte(_body, _at + 1);
  model := substr(_body, _at + 3, _size);
  _at := _at + 2 + _size;
  _size := get_byte(_body, _at + 1);
  content := substr(_body, _at + 3, _size);
  _at := _at + 2 + _size;
  _tag := get_byte(_body, _at);
  IF _tag = 192 THEN
    _at := _at + 1;
  ELSE
    SELECT a.n, a.at INTO _paths, _at FROM {schema}.vector_array(_body, _at) a;
    FOR _ IN 1.._paths LOOP
      _tag := get_byte(_body, _at);
      CASE
        WHEN _tag BETWEEN 160 AND 191 THEN _at := _at + 1 + _tag - 160;
        WHEN _tag = 217 THEN _at := _at + 2 + get_byte(_body, _at + 1);
        WHEN _tag = 218 THEN _at := _at + 3 + (get_byte(_body, _at + 1) << 8) + get_byte(_body, _at + 2);
        WHEN _tag = 219 THEN _at := _at + 5 + (get_byte(_body, _at + 1) << 24)
          + (get_byte(_body, _at + 2) << 16) + (get_byte(_body, _at + 3) << 8) + get_byte(_body, _at + 4);
        ELSE RAISE EXCEPTION 'perdure: an entry of the search index cannot be read';
      END CASE;
    END LOOP;
  END IF;
  SELECT a.n, a.at INTO _count, _at FROM {schema}.vector_array(_body, _at) a;
  FOR _number IN 1.._count LOOP
    _tag := get_byte(_body, _at);
    CASE _tag
      WHEN 196 THEN _size := get_byte(_body, _at + 1); _at := _at + 2;
      WHEN 197 THEN _size := (get_byte(_body, _at + 1) << 8) + get_byte(_body, _at + 2); _at := _at + 3;
      WHEN 198 THEN _size := (get_byte(_body, _at + 1) << 24) + (get_byte(_body, _at + 2) << 16)
        + (get_byte(_body, _at + 3) << 8) + get_byte(_body, _at + 4); _at := _at + 5;
      ELSE RAISE EXCEPTION 'perdure: an entry of the search index cannot be read';
    END CASE;
    _vector := substr(_body, _at + 1, _size);
    _at := _at + _size;
    place := _number;
    dims := _size / 4;
    numbers := CASE WHEN dims BETWEEN 1 AND {MOST_DIMS} THEN {schema}.vector_numbers(_vector) END;
    RETURN NEXT;
  END LOOP;
  IF _count = 0 AND length(model) = 0 AND _paths IS DISTINCT FROM 0 THEN
    place := 0;
    dims := 0;
    numbers := NULL;
    RETURN NEXT;
  END IF;
END $perdure$"""


def _write_array_function(schema: str) -> str:
    """Return the function that reads the header of an array: the number of its elements, and their
    position."""
    return f"""\
CREATE FUNCTION {schema}.vector_array(_body bytea, _at int, OUT n int, OUT at int)
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $perdure$
DECLARE
  _tag int := get_byte(_body, _at);
BEGIN
  CASE
    WHEN _tag BETWEEN 144 AND 159 THEN n := _tag - 144; at := _at + 1;
    WHEN _tag = 220 THEN n := (get_byte(_body, _at + 1) << 8) + get_byte(_body, _at + 2); at := _at + 3;
    WHEN _tag = 221 THEN n := (get_byte(_body, _at + 1) << 24) + (get_byte(_body, _at + 2) << 16)
      + (get_byte(_body, _at + 3) << 8) + get_byte(_body, _at + 4); at := _at + 5;
    ELSE RAISE EXCEPTION 'perdure: an entry of the search index cannot be read';
  END CASE;
END $perdure$"""


def _write_trigger_function(schema: str, home: str) -> str:
    """Return the trigger function. It adds no vectors in a commit that sends them itself, with
    ``vectors_sent``."""
    return f"""\
CREATE FUNCTION {schema}.vectors_kept() RETURNS trigger LANGUAGE plpgsql AS $perdure$
BEGIN
  IF TG_OP <> 'INSERT' THEN
    DELETE FROM {schema}.vector v WHERE v.t = OLD.t AND v.item = substr(OLD.name, 2);
  END IF;
  IF TG_OP <> 'DELETE' AND current_setting('{SENT}', true) IS DISTINCT FROM 'on' THEN
    INSERT INTO {schema}.vector SELECT NEW.t, substr(NEW.name, 2), e.place, e.model, e.content, e.dims,
      e.numbers::{home}.vector FROM {schema}.vectors_of(NEW.body) e;
  END IF;
  RETURN NULL;
END $perdure$"""


def _write_sending_function(schema: str, home: str) -> str:
    """Return ``vectors_sent(outcomes, counts, numbers, texts, rows, items, digests, vectors)``, which adds
    the vectors of the entries that a commit has put, and returns the outcomes.

    ``outcomes`` is the result of ``commit_N``, and the next three are its arguments. The other arguments have
    for each vector: the number of its job, its place and its length; its item; and the digests of its model
    and of its item's value; and the vector itself.
    """
    return f"""\
CREATE FUNCTION {schema}.vectors_sent(_z bigint[], _c bigint[], _n bigint[], _s text[], _r bigint[],
  _items text[], _b bytea[], _v {home}.vector[]) RETURNS bigint[]
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET plan_cache_mode = force_generic_plan SET jit = off
AS $perdure$
DECLARE
  _p int := _c[1];
  _k int := cardinality(_items);
BEGIN
  INSERT INTO {schema}.vector (t, item, place, model, content, dims, embedding)
    SELECT h.pk, u.item, u.place, u.model, u.content, u.dims, u.embedding
    FROM unnest(_r[1:_k], _r[_k+1:2*_k], _r[2*_k+1:3*_k], _items, _b[1:_k], _b[_k+1:2*_k], _v)
      AS u(job, place, dims, item, model, content, embedding)
    CROSS JOIN LATERAL (SELECT pk FROM {schema}.thread h WHERE h.space = _s[2*_p+_n[u.job]]
      AND h.tenant = _s[_n[u.job]] AND h.thread = _s[_p+_n[u.job]] OFFSET 0) h
    WHERE _z[u.job] = 0;
  RETURN _z;
END $perdure$"""


def _write_nearest_function(schema: str, home: str) -> str:
    """Return ``nearest(tenant, first, end, now, query, models, limit, exact)``, which finds the items nearest
    to a query in the namespaces from ``first`` to before ``end``, and whether all vectors were compared.

    All are compared if there is no HNSW index, or if the searched namespaces have at most ``exact`` vectors,
    or no more than an HNSW search would visit to find ``limit`` of them.
    """
    columns = ", ".join(f"i.{name}" for name in ITEM.columns())
    types = {"integer": "bigint", "text": "text", "bytes": "bytea"}
    declared = [f"{c.name} {types[c.kind]}" for c in (*ITEM.key, *ITEM.fields)]
    returned = ", ".join(
        ("tenant text", "thread text", "space text", *declared, "version bigint", "body bytea")
    )
    within = (
        "p.space = 'store' AND p.tenant = $1 AND p.thread >= $2 AND ($3 = '' OR p.thread < $3)"
        " AND (i.expires_at IS NULL OR i.expires_at > $4)"
    )
    joins = f"JOIN {schema}.item i ON i.t = v.t AND i.key = v.item"
    exact = (
        f"SELECT x.* FROM (SELECT p.tenant, p.thread, p.space, {columns},"
        f" coalesce(nullif(v.embedding OPERATOR({home}.<=>) $5, 'NaN'), 1), v.content, true"
        f" FROM {schema}.thread p JOIN {schema}.vector v ON v.t = p.pk {joins}"
        f" WHERE {within} AND v.model = ANY ($7) AND v.dims = $8)"
        f" x (tenant, thread, space, {', '.join(ITEM.columns())}, d, c, e)"
        " ORDER BY x.d, x.thread, x.key LIMIT $6"
    )
    distance = f"(v.embedding::{home}.vector(%1$s)) OPERATOR({home}.<=>) $5"
    by_graph = (
        f"SELECT p.tenant, p.thread, p.space, {columns}, {distance}, v.content, false"
        f" FROM {schema}.vector v JOIN {schema}.thread p ON p.pk = v.t {joins}"
        f" WHERE {within} AND v.model = ANY ($7) AND v.dims = %1$s ORDER BY {distance} LIMIT $6"
    )
    literal = schema.replace("'", "''")
    return f"""\
CREATE FUNCTION {schema}.nearest(
  _tenant text, _first text, _end text, _now bigint, _query real[], _models bytea[],
  _limit bigint, _exact bigint)
RETURNS TABLE ({returned}, distance float8, content bytea, whole boolean)
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET enable_bitmapscan = off SET enable_sort = off SET jit = off AS $perdure$
#variable_conflict use_column
DECLARE
  _dims int := cardinality(_query);
  _near {home}.vector := _query::{home}.vector;
  _graph regclass := to_regclass('{literal}.vector_hnsw_' || _dims);
  _few bigint;
  _found bigint;
BEGIN
  IF _graph IS NOT NULL AND (SELECT x.indisvalid FROM pg_index x WHERE x.indexrelid = _graph)
    AND {home}.vector_norm(_near) > 0 THEN
    SELECT greatest(_exact, sqrt(_limit * greatest(c.reltuples, 0)::float8))::bigint INTO _few
      FROM pg_class c WHERE c.oid = _graph;
    SELECT count(*) INTO _found FROM (SELECT FROM {schema}.thread p JOIN {schema}.vector v ON v.t = p.pk
      WHERE p.space = 'store' AND p.tenant = _tenant AND p.thread >= _first
        AND (_end = '' OR p.thread < _end) LIMIT _few + 1) n;
  END IF;
  IF _found > _few THEN
    PERFORM set_config('hnsw.ef_search', least(1000, greatest({EF_SEARCH}, _limit))::text, true);
    PERFORM set_config('hnsw.iterative_scan', 'strict_order', true);
    RETURN QUERY EXECUTE format($sql${by_graph.replace("%", "%%").replace("%%1$s", "%1$s")}$sql$, _dims)
      USING _tenant, _first, _end, _now, _near, _limit, _models;
  ELSE
    RETURN QUERY EXECUTE $sql${exact}$sql$
      USING _tenant, _first, _end, _now, _near, _limit, _models, _dims;
  END IF;
END $perdure$"""


def _write_damage_function(schema: str) -> str:
    """Return ``vectors_damaged(t)``, which finds the items of a partition, or of all partitions for NULL,
    whose rows do not match their entries."""
    return f"""\
CREATE FUNCTION {schema}.vectors_damaged(_t bigint) RETURNS TABLE (t bigint, item text)
LANGUAGE plpgsql STABLE AS $perdure$
#variable_conflict use_column
BEGIN
  RETURN QUERY SELECT DISTINCT coalesce(w.t, v.t), coalesce(w.item, v.item)::text FROM (
      SELECT d.t, substr(d.name, 2) AS item, e.* FROM {schema}.document d
        CROSS JOIN LATERAL {schema}.vectors_of(d.body) e
        WHERE d.{_IS_ENTRY.format(row="d")} AND (_t IS NULL OR d.t = _t)) w
    FULL JOIN (SELECT * FROM {schema}.vector v WHERE _t IS NULL OR v.t = _t) v
      ON v.t = w.t AND v.item = w.item AND v.place = w.place
    WHERE (w.model, w.content, w.dims, w.numbers) IS DISTINCT FROM
      (v.model, v.content, v.dims, v.embedding::real[]);
END $perdure$"""
