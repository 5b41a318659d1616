"""Describes objects that can never be stored, and the values to keep in the state in their place.

A codec does not help: these objects are code, are not finished, or belong to the process that made them.
"""

from __future__ import annotations

import types
from collections.abc import AsyncIterator, Awaitable, Iterator
from concurrent.futures import Future
from functools import partial
from io import BytesIO, StringIO
from typing import Any, TypeVar

_FUNCTIONS = (
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    types.MethodWrapperType,
    types.WrapperDescriptorType,
    types.MethodDescriptorType,
    partial,
)
_TYPES = (type, types.GenericAlias, types.UnionType, TypeVar)
_OF_THE_PROCESS = (
    ("_thread", "a lock"),
    ("threading", "an object that threads share"),
    ("asyncio", "an object of an event loop"),
    ("multiprocessing", "an object that processes share"),
    ("concurrent.futures", "an executor"),
    ("queue", "a queue of this process"),
    ("_queue", "a queue of this process"),
    ("_io", "an open file"),
    ("tempfile", "an open file"),
    ("mmap", "an open file"),
    ("socket", "an open connection"),
    ("_socket", "an open connection"),
    ("ssl", "an open connection"),
    ("sqlite3", "an open connection"),
    ("subprocess", "a running process"),
    ("logging", "a logger"),
    ("weakref", "a reference into this process"),
    ("contextvars", "a variable of this process"),
    ("_contextvars", "a variable of this process"),
)
"""Modules of the standard library, with what their objects are; objects of their submodules are the same."""
_DATA = {("sqlite3", "Row"), ("subprocess", "CompletedProcess"), ("logging", "LogRecord")}
"""Classes of these modules that hold data."""
_BUILT_IN = ("builtins", "itertools")


def describe(obj: Any) -> str | None:
    """Describe an object and the value to keep in its place, as the end of an error; ``None`` for one that a
    codec could store."""
    if isinstance(obj, _TYPES):
        return f"it is a type, {_name(obj)}; keep its name in the state, and look it up in the node"
    if isinstance(obj, _FUNCTIONS):
        return (
            f"it is a function, {_name(obj)}, which is code and no data; keep its name in the state and look "
            "it up in the node, or pass the function with the run's context (context_schema)"
        )
    if isinstance(obj, types.ModuleType):
        return f"it is the module {obj.__name__}; keep its name in the state, and import it in the node"
    if isinstance(obj, BytesIO | StringIO):
        return "it is a buffer; keep its getvalue() in the state"
    if isinstance(obj, Awaitable | Future):
        return "it is not finished; wait for it in the node, and keep its result in the state"
    if (what := _find_process_kind(type(obj))) is not None:
        return (
            f"it is {what}, which ends with this process; make it in the node that uses it, and keep in the "
            "state what it is made from, such as a path"
        )
    if isinstance(obj, Iterator | AsyncIterator) and type(obj).__module__ in _BUILT_IN:
        return "it is an iterator, which can be read once; keep a list of what it yields in the state"
    return None


def _find_process_kind(kind: type) -> str | None:
    """Return what the objects of a class are if they belong to the process, by the class or by a base of it;
    otherwise ``None``."""
    for cls in kind.__mro__[:-1]:
        if (cls.__module__, cls.__name__) in _DATA:
            return None
        for module, what in _OF_THE_PROCESS:
            if cls.__module__ == module or cls.__module__.startswith(f"{module}."):
                return what
    return None


def _name(obj: Any) -> str:
    inner = obj.func if isinstance(obj, partial) else obj
    name = getattr(inner, "__qualname__", None)
    if not isinstance(name, str):
        return repr(inner)
    module = getattr(inner, "__module__", None)
    if isinstance(module, str):
        return f"{module}.{name}"
    return name
