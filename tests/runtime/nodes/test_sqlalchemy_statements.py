"""Core statements of SQLAlchemy in a step's commit: on both databases what an engine would have stored."""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Iterator
from typing import Any, TypedDict, cast

import pytest
import sqlalchemy as sa
from langgraph.graph import START, StateGraph
from sqlalchemy.dialects import postgresql, sqlite

import perdure
from perdure.errors import StatementRefused
from perdure.runtime import transaction
from perdure.runtime.nodes.sqlalchemy_statements import is_core_statement, render
from tests.own_tables import BOTH, own_tables, query

pytestmark = pytest.mark.each_backend  # a database's own statements

MOMENT = datetime.datetime(2026, 1, 2, 3, 4, 5)
rows = sa.Table(
    "own_rows",
    sa.MetaData(),
    sa.Column("number", sa.Integer, primary_key=True),
    sa.Column("name", sa.String(50), default="nobody"),
    sa.Column("made", sa.DateTime, default=lambda: MOMENT),
    sa.Column("changed", sa.DateTime, onupdate=lambda: MOMENT),
    sa.Column("data", sa.JSON),
    sa.Column("is_on", sa.Boolean, default=True),
    sa.Column("key", sa.Uuid),
)


class Nothing(TypedDict, total=False):
    seen: str


@pytest.fixture(params=BOTH)
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    with own_tables(request.param) as url:
        dialect = cast(Any, sqlite if request.param == "sqlite" else postgresql).dialect()
        query(url, "DROP TABLE IF EXISTS own_rows")
        query(url, str(sa.schema.CreateTable(rows).compile(dialect=dialect)))
        yield url


def give(url: str, *statements: Any, **values: Any) -> None:
    """Run a node that gives statements."""

    def node(state: Nothing) -> None:
        for statement in statements:
            transaction().execute(statement, values)

    with perdure.connect_sync(url) as db:
        graph = StateGraph(Nothing).add_node("node", node).add_edge(START, "node")
        graph.compile(checkpointer=db.checkpointer()).invoke(
            {"seen": ""}, {"configurable": {"thread_id": "t"}}
        )


def test_an_insert_has_its_defaults_and_its_types(url: str) -> None:
    key = uuid.UUID(int=7)
    give(url, rows.insert().values(number=1, data={"a": [1, ":b"]}, key=key))
    ((name, made, data, is_on, found),) = query(url, "SELECT name, made, data, is_on, key FROM own_rows")
    assert name == "nobody"
    assert str(made)[:19] == "2026-01-02 03:04:05"
    assert data in ({"a": [1, ":b"]}, '{"a": [1, ":b"]}')
    assert is_on in (True, 1)
    assert uuid.UUID(str(found)) == key


def test_updates_deletes_and_lists(url: str) -> None:
    give(url, *(rows.insert().values(number=n) for n in range(6)))
    give(
        url,
        rows.update().where(rows.c.number.in_([1, 2])).values(name="changed"),
        rows.delete().where(rows.c.number.in_([3, 4, 5])),
        sa.text("INSERT INTO own_rows (number, name) VALUES (9, '\\:not a name')"),
    )
    found = query(url, "SELECT number, name, changed IS NULL FROM own_rows ORDER BY number")
    assert [(number, name, bool(unset)) for number, name, unset in found] == [
        (0, "nobody", True),
        (1, "changed", False),
        (2, "changed", False),
        (9, ":not a name", True),
    ]


def test_values_may_be_parameters(url: str) -> None:
    give(url, rows.insert(), number=3, name="given")
    give(url, rows.update().where(rows.c.number == sa.bindparam("which")), which=3, name="again")
    assert query(url, "SELECT number, name FROM own_rows") == [(3, "again")]


def test_an_upsert_is_the_dialects_own(url: str) -> None:
    own: Any = sqlite if url.startswith("sqlite") else postgresql
    insert = own.insert(rows).values(number=1, name="first")
    upsert = insert.on_conflict_do_update(index_elements=["number"], set_={"name": insert.excluded.name})
    give(url, rows.insert().values(number=1), upsert)
    assert query(url, "SELECT number, name FROM own_rows") == [(1, "first")]


def test_a_row_that_is_there_is_refused(url: str) -> None:
    with pytest.raises(StatementRefused, match="INSERT INTO own_rows"):
        give(url, rows.insert().values(number=1, name="a"), rows.insert().values(number=1, name="b"))
    assert query(url, "SELECT * FROM own_rows") == []


def test_several_rows_of_one_statement(url: str) -> None:
    give(url, rows.insert().values([{"number": 1, "name": "a"}, {"number": 2, "name": "b"}]))
    assert query(url, "SELECT number, name FROM own_rows ORDER BY number") == [(1, "a"), (2, "b")]


def test_only_what_can_be_executed_is_a_statement() -> None:
    assert is_core_statement(sa.text("SELECT 1"))
    assert is_core_statement(rows.delete())
    assert not is_core_statement(rows)
    assert not is_core_statement(object())
    assert render(sa.select(sa.literal(1)), {}, "sqlite")[0].startswith("SELECT")
