"""Core statements of SQLAlchemy as text with parameters, for the dialect of the database."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from sqlalchemy import Dialect


def is_core_statement(statement: object) -> bool:
    """Return True for what SQLAlchemy can execute; a program that has one has imported it."""
    return "sqlalchemy" in sys.modules and bool(getattr(statement, "supports_execution", False))


def render(statement: Any, parameters: Mapping[str, object], dialect: str) -> tuple[str, dict[str, object]]:
    """Return the text of a statement, with parameters written as ``:name``, and their values as the client
    takes them. Column defaults that SQLAlchemy computes in Python are among the values.

    Args:
        statement: The statement.
        parameters: Values of its parameters, or of columns of an INSERT or UPDATE that it does not set.
        dialect: SQLAlchemy's name of the database.
    """
    from sqlalchemy.sql.compiler import SQLCompiler
    from sqlalchemy.sql.dml import Insert, Update

    target = _find_dialect(dialect)
    if isinstance(statement, Insert | Update):
        # Otherwise SQLAlchemy would add RETURNING for the new row's key, which is not read.
        statement = statement.inline()
    compiled = statement.compile(dialect=target, column_keys=list(parameters) or None)
    if not isinstance(compiled, SQLCompiler):
        return str(compiled), {}  # a statement that defines tables
    values = dict(compiled.construct_params({**parameters, **_list_defaults(compiled)}))
    expanded = compiled.construct_expanded_state(values)
    converted: dict[str, object] = {}
    for name, value in expanded.parameters.items():
        bound = compiled.binds.get(name)
        convert = expanded.processors.get(name)
        if convert is None and bound is not None:
            convert = bound.type.dialect_impl(target).bind_processor(target)
        converted[name] = convert(value) if callable(convert) else value
    return expanded.statement, converted


def _find_dialect(name: str) -> Dialect:
    if name == "postgresql":
        from sqlalchemy.dialects.postgresql import psycopg

        made: Dialect = cast(Any, psycopg).dialect(paramstyle="named")
        return made
    from sqlalchemy.dialects.sqlite import pysqlite

    return pysqlite.dialect(paramstyle="named")


def _list_defaults(compiled: Any) -> dict[str, object]:
    out: dict[str, object] = {}
    for columns, attribute in ((compiled.insert_prefetch, "default"), (compiled.update_prefetch, "onupdate")):
        for column in columns:
            default = getattr(column, attribute)
            out[column.key] = default.arg
            if default.is_callable:
                out[column.key] = default.arg(None)
    return out
