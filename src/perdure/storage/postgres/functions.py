"""The functions in the database: a group of commits, a group of fetches, the search by an index, the removal
of a partition.

They are generated from the declared kinds and carry the layout's version in their names, so that two
releases can work on one database. Inside a function each statement is planned once a session, also behind a
pooler, where nothing can be prepared by name. A function finds the statement of a section by bisection, so
kinds that a call does not use cost it next to nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from perdure.model.records import INDEXED, KINDS, Kind
from perdure.storage.postgres.request_arrays import (
    ANSWER,
    EXPECT_ABSENT,
    EXPECT_PRESENT,
    EXPECT_VERSION,
    SECTIONS,
    SHAPES,
    ReadShape,
    Section,
    SectionColumn,
    answer_slots,
)

_TYPES = {"n": "bigint", "s": "text", "b": "bytea"}
_COLUMN_TYPES = {"integer": "bigint", "text": "text", "bytes": "bytea"}

# Every statement reaches its rows by a given key, so an index is always right; a plan made while the tables
# were small must not scan them when they have grown.
_BY_INDEX = """
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan SET jit = off"""

LOCK_TIMEOUT_S = 10
"""Seconds for which a commit waits for a lock on rows of its partition. Perdure's own commits hold such locks
for the time of one statement, so a lock held for longer is that of another client's open transaction."""


TOO_LATE = "P5002"
"""The SQLSTATE of a statement that begins after its deadline, and therefore does nothing."""

NOW = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
"""The server's clock in microseconds, on which deadlines are based."""


def write_functions(schema: str, version: int) -> list[str]:
    """Return the statements that create the functions of a version."""
    makers = (commit, fetch, drop)
    return [make(schema, version) for make in makers] + [find(schema, version, index) for index in INDEXED]


def commit(schema: str, version: int) -> str:
    """Return ``commit_N(counts, numbers, texts, bytes)``: for each job 0, or the number of its first
    operation whose expectation did not hold. Sections are executed in the order given.

    Its variables: ``_p`` the number of partitions, ``_jobs`` that of jobs, ``_pks`` the rows of the
    partitions, ``_t`` that of each job, ``_z`` its outcome, ``_x`` the number of the section, ``_k`` how many
    entries it has, ``_nn``, ``_sn`` and ``_bn`` how far the three arrays are read.
    """
    body = _choose([_write_section(schema, section) for section in SECTIONS])
    return f"""\
CREATE FUNCTION {schema}.commit_{version}(_c bigint[], _n bigint[], _s text[], _b bytea[]) RETURNS bigint[]
LANGUAGE plpgsql VOLATILE{_BY_INDEX} SET lock_timeout = '{LOCK_TIMEOUT_S}s' AS $perdure$
DECLARE
  _p int := _c[1];
  _jobs int := _c[2];
  _pks bigint[];
  _new bigint[] := '{{}}';
  _made bigint[];
  _t bigint[];
  _z bigint[] := array_fill(0::bigint, ARRAY[_c[2]::int]);
  _x int;
  _nn int := _c[2];
  _sn int := 3 * _c[1];
  _bn int := 0;
  _k int;
  _j bigint;
  _o bigint;
BEGIN
  IF current_setting('transaction_isolation') <> 'read committed' THEN
    RAISE EXCEPTION 'perdure needs read committed' USING ERRCODE = 'P5001';
  END IF;
  IF current_setting('synchronous_commit') = 'off' THEN
    PERFORM set_config('synchronous_commit', 'on', true);
  END IF;
  -- A partition's row is locked first, and always in the same order: one commit a partition at a time.
  LOOP
    SELECT array_agg(l.pk ORDER BY l.p) INTO _pks FROM (
      SELECT u.p, h.pk FROM unnest(_s[1:_p], _s[_p+1:2*_p], _s[2*_p+1:3*_p])
        WITH ORDINALITY AS u(tenant, thread, space, p)
      JOIN {schema}.thread h ON h.space = u.space AND h.tenant = u.tenant AND h.thread = u.thread
      ORDER BY u.p FOR UPDATE OF h) l;
    EXIT WHEN cardinality(_pks) = _p;
    WITH made AS (
      INSERT INTO {schema}.thread (tenant, thread, space)
      SELECT u.tenant, u.thread, u.space FROM unnest(_s[1:_p], _s[_p+1:2*_p], _s[2*_p+1:3*_p])
        WITH ORDINALITY AS u(tenant, thread, space, p)
      WHERE NOT EXISTS (SELECT FROM {schema}.thread h
        WHERE h.space = u.space AND h.tenant = u.tenant AND h.thread = u.thread)
      ORDER BY u.p ON CONFLICT DO NOTHING RETURNING pk)
    SELECT coalesce(array_agg(pk), '{{}}') INTO _made FROM made;
    _new := _new || _made;
  END LOOP;
  -- The sender has given up by then, and may have sent it again.
  IF {NOW} > _c[3] THEN
    RAISE EXCEPTION 'perdure: too late' USING ERRCODE = '{TOO_LATE}';
  END IF;
  SELECT array_agg(_pks[u.p] ORDER BY u.j) INTO _t FROM unnest(_n[1:_jobs]) WITH ORDINALITY AS u(p, j);
  FOR _at IN 4..cardinality(_c) BY 2 LOOP
    _x := _c[_at];
    _k := _c[_at+1];
{body}
  END LOOP;
  IF cardinality(_new) > 0 THEN
    -- A refused commit leaves no thread behind.
    DELETE FROM {schema}.thread h WHERE h.pk = ANY (_new)
      AND NOT EXISTS (SELECT FROM unnest(_t, _z) AS u(pk, z) WHERE u.pk = h.pk AND u.z = 0);
  END IF;
  RETURN _z;
END $perdure$"""


def fetch(schema: str, version: int) -> str:
    """Return ``fetch_N(counts, numbers, texts, bytes)``: the records of many items in one snapshot."""
    body = _choose([_write_shape(schema, shape) for shape in SHAPES])
    columns = ", ".join(f"{name} {_TYPES[slot]}" for name, slot in ANSWER)
    return f"""\
CREATE FUNCTION {schema}.fetch_{version}(_c bigint[], _n bigint[], _s text[], _b bytea[])
RETURNS TABLE ({columns})
LANGUAGE plpgsql STABLE{_BY_INDEX} AS $perdure$
#variable_conflict use_column
DECLARE
  _p int := _c[1];
  _t bigint[];
  _nn int := 0;
  _sn int := 3 * _c[1];
  _bn int := 0;
  _x int;
  _k int;
BEGIN
  SELECT array_agg(h.pk ORDER BY u.p) INTO _t FROM unnest(_s[1:_p], _s[_p+1:2*_p], _s[2*_p+1:3*_p])
    WITH ORDINALITY AS u(tenant, thread, space, p)
  LEFT JOIN {schema}.thread h ON h.space = u.space AND h.tenant = u.tenant AND h.thread = u.thread;
  FOR _at IN 2..cardinality(_c) BY 2 LOOP
    _x := _c[_at];
    _k := _c[_at+1];
{body}
  END LOOP;
END $perdure$"""


def find(schema: str, version: int, index: str) -> str:
    """Return ``INDEX_N(value, limit, tenant)``: partition, key and fields of the records that an index finds,
    in the index's order, for one tenant or all. It reads no more entries than it needs."""
    kind = INDEXED[index]
    columns = (*kind.key, *kind.fields)
    (indexed,) = (c for c in columns if c.name == kind.index)
    typed = ", ".join(f"{c.name} {_COLUMN_TYPES[c.kind]}" for c in columns)
    return f"""\
CREATE FUNCTION {schema}.{index}_{version}(_value {_COLUMN_TYPES[indexed.kind]}, _limit bigint, _tenant text)
RETURNS TABLE (tenant text, thread text, space text, {typed})
LANGUAGE plpgsql STABLE{_BY_INDEX} SET enable_sort = off AS $perdure$
#variable_conflict use_column
BEGIN
  RETURN QUERY SELECT p.tenant, p.thread, p.space, {", ".join(f"r.{c.name}" for c in columns)}
    FROM {schema}.{kind.name} r
    CROSS JOIN LATERAL (SELECT * FROM {schema}.thread h WHERE h.pk = r.t OFFSET 0) p
    WHERE r.{kind.index} {"<=" if indexed.kind == "integer" else "="} _value
      AND (_tenant IS NULL OR p.tenant = _tenant)
    ORDER BY r.{kind.index} LIMIT _limit;
END $perdure$"""


def drop(schema: str, version: int) -> str:
    """Return ``drop_N(tenant, thread, space, most, deadline)``: hides the partition at once, and removes at
    most ``most`` rows of any dropped partitions; true if there are more to remove."""
    removals = "\n".join(
        f"    DELETE FROM {schema}.{kind.name} WHERE ctid = ANY (ARRAY("
        f"SELECT ctid FROM {schema}.{kind.name} WHERE t = _pk LIMIT _most));\n"
        "    GET DIAGNOSTICS _k = ROW_COUNT;\n"
        "    _most := _most - _k;\n"
        "    IF _most <= 0 THEN RETURN true; END IF;"
        for kind in KINDS
    )
    return f"""\
CREATE FUNCTION {schema}.drop_{version}(
  _tenant text, _thread text, _space text, _most bigint, _deadline bigint) RETURNS boolean
LANGUAGE plpgsql VOLATILE{_BY_INDEX} SET lock_timeout = '{LOCK_TIMEOUT_S}s' AS $perdure$
DECLARE
  _pk bigint;
  _k bigint;
BEGIN
  IF current_setting('synchronous_commit') = 'off' THEN
    PERFORM set_config('synchronous_commit', 'on', true);
  END IF;
  DELETE FROM {schema}.thread WHERE space = _space AND tenant = _tenant AND thread = _thread
    RETURNING pk INTO _pk;
  IF {NOW} > _deadline THEN
    RAISE EXCEPTION 'perdure: too late' USING ERRCODE = '{TOO_LATE}';
  END IF;
  IF _pk IS NOT NULL THEN
    INSERT INTO {schema}.dropped (pk) VALUES (_pk);
  END IF;
  FOR _pk IN SELECT pk FROM {schema}.dropped ORDER BY pk LIMIT 100 FOR UPDATE SKIP LOCKED LOOP
{removals}
    DELETE FROM {schema}.dropped WHERE pk = _pk;
  END LOOP;
  RETURN false;
END $perdure$"""


def drop_by(schema: str, old: int, version: int) -> str:
    """Return the statement that makes ``drop_OLD`` do what ``drop_N`` does.

    Processes of an earlier release know only the old function. They must not leave rows behind in tables that
    they do not know.

    Args:
        schema: The quoted schema.
        old: The old version.
        version: The version ``N``.
    """
    return f"""\
CREATE OR REPLACE FUNCTION {schema}.drop_{old}(
  _tenant text, _thread text, _space text, _most bigint, _deadline bigint) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $perdure$
BEGIN
  RETURN {schema}.drop_{version}(_tenant, _thread, _space, _most, _deadline);
END $perdure$"""


def _choose(blocks: Sequence[str], first: int = 0) -> str:
    """Return the statements that execute block ``_x``, which is found by bisection."""
    if len(blocks) == 1:
        return blocks[0]
    half = len(blocks) // 2
    below, above = _choose(blocks[:half], first), _choose(blocks[half:], first + half)
    return f"    IF _x < {first + half} THEN\n{below}\n    ELSE\n{above}\n    END IF;"


def _write_section(schema: str, section: Section) -> str:
    source, advance = _write_source(section.columns)
    writers = {"check": _write_check, "put": _write_put, "delete": _write_delete}
    return f"{writers[section.action](schema, section, source)}\n      {advance}"


def _write_source(columns: Iterable[SectionColumn]) -> tuple[str, str]:
    """Return the expression that unfolds a section's columns into rows, and the statements that step past
    them."""
    used = {"n": 0, "s": 0, "b": 0}
    slices: list[str] = []
    names: list[str] = []
    for name, slot in columns:
        start = used[slot]
        used[slot] += 1
        slices.append(f"_{slot}[_{slot}n+{start}*_k+1:_{slot}n+{start + 1}*_k]")
        names.append(name)
    advance = " ".join(f"_{slot}n := _{slot}n + {count}*_k;" for slot, count in used.items() if count)
    return f"unnest({', '.join(slices)}) AS u({', '.join(names)})", advance


def write_field_order_column(column: str, table: str = "") -> str:
    """Return a key's column in an index that is ordered by a field. It is an expression, so that the planner
    does not prefer this index to the key for single records while a table has no statistics."""
    return f"({table}{column} || '')"


def _write_same_key(kind: Kind, depth: int | None = None) -> str:
    return "".join(f" AND r.{c.name} = u.{c.name}" for c in kind.key[:depth])


def _write_check(schema: str, section: Section, source: str) -> str:
    kind = section.kind
    if kind.versioned:
        version = "r.version IS DISTINCT FROM u.version_"
    else:
        version = "r.t IS NULL OR u.version_ <> 0"
    fields = ", ".join(f"'{c.name}', r.{c.name}" for c in kind.fields)
    changed = (
        f" OR u.unchanged_ IS NOT NULL AND (r.t IS NULL"
        f" OR NOT jsonb_build_object({fields}) @> u.unchanged_::jsonb)"
    )
    return f"""\
      FOR _j, _o IN SELECT u.j_, u.o_ FROM {source}
        LEFT JOIN {schema}.{kind.name} r ON r.t = _t[u.j_]{_write_same_key(kind)}
        WHERE CASE u.expect_ WHEN {EXPECT_ABSENT} THEN r.t IS NOT NULL WHEN {EXPECT_PRESENT} THEN r.t IS NULL
          WHEN {EXPECT_VERSION} THEN {version} ELSE false END{changed if fields else ""}
      LOOP
        _z[_j] := least(nullif(_z[_j], 0), _o);
      END LOOP;"""


def _write_put(schema: str, section: Section, source: str) -> str:
    kind = section.kind
    names = kind.columns()
    key = [c.name for c in kind.key]
    other_names = [name for name in names if name not in key]
    if kind.grows is not None:
        grows = kind.grows
        action = f"UPDATE SET {grows} = excluded.{grows} WHERE excluded.{grows} > {kind.name}.{grows}"
    else:
        action = "UPDATE SET " + ", ".join(f"{name} = excluded.{name}" for name in other_names)
    return f"""\
      INSERT INTO {schema}.{kind.name} ({", ".join(["t", *names])})
        SELECT {", ".join(["_t[u.j_]", *(f"u.{name}" for name in names)])} FROM {source} WHERE _z[u.j_] = 0
        ON CONFLICT ({", ".join(["t", *key])}) DO {action if other_names else "NOTHING"};"""


def _write_delete(schema: str, section: Section, source: str) -> str:
    kind = section.kind
    return f"""\
      DELETE FROM {schema}.{kind.name} r USING {source}
        WHERE _z[u.j_] = 0 AND r.t = _t[u.j_]{_write_same_key(kind)};"""


def _write_shape(schema: str, shape: ReadShape) -> str:
    kind = shape.kind
    source, advance = _write_source(shape.columns)
    column_of = {answer: name for name, answer, _ in answer_slots(kind)}
    columns = ["u.i_"]
    for answer, slot in ANSWER[1:]:
        name = column_of.get(answer)
        if name is None:
            columns.append(f"NULL::{_TYPES[slot]}")
        elif name == "body":
            columns.append("CASE WHEN u.bodies_ = 1 THEN r.body END")
        else:
            columns.append(f"r.{name}")
    where = f"r.t = _t[u.p_]{_write_same_key(kind, shape.depth)}"
    if shape.by:
        where = "r.t = _t[u.p_]" + "".join(
            f" AND {write_field_order_column(c.name, 'r.')} = u.{c.name}" for c in kind.key[: shape.depth]
        )
    join = f"JOIN {schema}.{kind.name} r ON {where}"
    if shape.depth < len(kind.key):
        if shape.after:
            sign = "<" if shape.reverse else ">"
            edge = ", ".join(f"u.after_{name}" for name in shape.order)
            where += f" AND ({', '.join(f'r.{name}' for name in shape.order)}) {sign} ({edge})"
        direction = " DESC" if shape.reverse else ""
        order = ", ".join(f"r.{name}{direction}" for name in shape.order)
        join = (
            f"CROSS JOIN LATERAL (SELECT * FROM {schema}.{kind.name} r WHERE {where}\n"
            f"        ORDER BY {order} LIMIT u.limit_) r"
        )
    return f"""\
      RETURN QUERY SELECT {", ".join(columns)} FROM {source}
        {join};
      {advance}"""
