"""The types that stored values may be built of, and their lookup by name.

Nothing is imported because a row names it: a class is one of LangChain's and LangGraph's own, one that the
program named, or, with ``allow="imported"``, a data type in a module that is imported already. Modules and
classes are examined without running any of their code.
"""

from __future__ import annotations

import importlib
import re
import sys
import types
import typing
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, cast
from weakref import WeakKeyDictionary

from langchain_core.agents import AgentAction, AgentFinish, AgentStep
from langchain_core.documents.base import BaseMedia
from langchain_core.load.serializable import Serializable
from langchain_core.messages import BaseMessage
from langchain_core.outputs import Generation
from langchain_core.prompt_values import PromptValue
from langchain_core.runnables import Runnable
from langgraph.checkpoint.serde._msgpack import SAFE_MSGPACK_TYPES, STRICT_MSGPACK_ENABLED
from pydantic import BaseModel, SecretBytes, SecretStr

from perdure.errors import TypeNotAllowed, TypeNotFound, Unserialisable
from perdure.model.arguments import refuse_text

TypeName = tuple[str, ...]
"""A type's module, and its name within the module, with dots."""

Allow = Literal["imported", "listed"] | Collection[type | TypeName]
"""The types allowed besides LangChain's, LangGraph's and the standard library's values: every imported data
type, none, or the types of a list."""

LIBRARY = "db.checkpointer({})"
"""The place for options in a program that makes its own checkpointer."""

AGENT = "perdure.runtime.Agent(graph, {}), in place of the graph that is served"
"""The place for options in a program whose graphs are run by a runtime or a server."""

NONE_RENAMED: Mapping[str, str] = MappingProxyType({})

_PASSIVE = (AgentAction, AgentFinish, AgentStep, BaseMedia, BaseMessage, Generation, PromptValue)
"""LangChain's serialisable classes that hold data; the others are tools, models and templates."""


class Types:
    """The types of one checkpointer. Immutable except for its cache; safe to share between threads."""

    def __init__(
        self, allow: Allow = "imported", place: str = LIBRARY, renamed: Mapping[str, str] = NONE_RENAMED
    ) -> None:
        if isinstance(allow, str) and allow not in ("imported", "listed"):
            raise ValueError(
                f"allow is 'imported', 'listed' or a list of types, not {allow!r}; for one type, write "
                "allow=[TheType]"
            )
        self.is_open = allow == "imported"
        self.place = place
        self._renamed = renamed
        if isinstance(allow, str):
            self._given: tuple[type | TypeName, ...] = ()
        else:
            self._given = tuple(allow)
        self._names: set[TypeName] = set()
        self._classes: dict[TypeName, type] = {}
        if not isinstance(allow, str):
            refuse_text("allow", allow)
        for word in cast(tuple[object, ...], self._given):
            if isinstance(word, str | bytes):
                raise TypeError(f"allow takes classes and pairs of module and name, not {word!r} alone")
        for item in self._given:
            if isinstance(item, tuple):
                self._names.update((item, (_find_stable_name(item[0]), *item[1:])))
            else:
                self._classes.update((name_of(cls), cls) for cls in list_types_within(item))
        self._checked: WeakKeyDictionary[type, TypeName] = WeakKeyDictionary()

    def with_types(self, extra: Iterable[type | TypeName], place: str | None = None) -> Types:
        """Return the same with more types, and with another ``place`` if given."""
        refuse_text("allow", extra)
        new = Types((*self._given, *extra), place or self.place, self._renamed)
        new.is_open = self.is_open
        return new

    def with_earlier_names(self, renamed: Mapping[str, str]) -> Types:
        """Return the same types, some of which are found by earlier names too: module and name with dots."""
        new = self.with_types(())
        new._renamed = renamed
        return new

    def with_imported_types(self) -> Types:
        """Return the same types, and every imported data type."""
        new = self.with_types(())
        new.is_open = True
        return new

    def find(self, module: object, name: object) -> Any:
        """Return the class of a stored name.

        Raises:
            TypeNotAllowed: The type is not allowed, or the name is malformed.
            TypeNotFound: The type is allowed and does not exist in this program.
        """
        if not isinstance(module, str) or not isinstance(name, str):
            raise TypeNotAllowed("a stored value names its type in no way that a type is named")
        if self._renamed and (present := self._renamed.get(f"{module}.{name}")) is not None:
            module, name = _split_name(present)
        key = (module, name)
        found = _OWN.get(key) or self._classes.get(key)
        if found is not None:
            return found
        if key in self._names or (module, name.rpartition(".")[2]) in self._names:
            return self._find_listed(module, name)
        if not self.is_open:
            raise self.refusal([key])
        cls = _look_up(module, name)
        if cls is None:
            raise TypeNotFound(
                f"a stored value is of type {module}.{name}, which is not in this program: import its module "
                "before threads are read, or, if it was renamed or moved, keep an alias under the old name"
            )
        if not is_data(cls):
            raise self.refusal([key])
        return cls

    def name(self, cls: type) -> TypeName:
        """Return the name under which a class will be found again.

        Raises:
            TypeNotAllowed: The class is not allowed.
            Unfindable: The name leads to something else.
        """
        known = self._checked.get(cls)
        if known is not None:
            return known
        for key in dict.fromkeys((name_of(cls), (cls.__module__, cls.__qualname__))):
            with suppress(TypeNotFound):
                if self.find(*key) is cls:
                    self._checked[cls] = key
                    return key
        raise Unfindable(_describe_unfindable(cls))

    def refusal(self, missing: Sequence[TypeName], where: str = "") -> TypeNotAllowed:
        """Return the error that names all missing types and the option to pass; ``where`` is its prefix."""
        names = [".".join(name) for name in missing]
        many = len(names) > 1
        text = (
            f"{where}the type{'s' if many else ''} {_join_names(names)} {'are' if many else 'is'} not allowed"
        )
        short = ", ".join(name.rpartition(".")[2] for name in names)
        listed = self.place.format(f"allow=[{short}]")
        if not self.is_open:
            text += f" in a checkpoint; if safe to build from stored data, pass {listed}"
            return _not_allowed_error(text, missing)
        codec = self.place.format(f"codecs=[perdure.Codec({names[0].rpartition('.')[2]}, dump, load)]")
        text += (
            " in a checkpoint: only data types are (pydantic models, dataclasses, enums, named tuples "
            f"and the standard library's values); keep plain data in the state, or say how to store it: "
            f"{codec}"
        )
        return _not_allowed_error(text, missing)

    def _find_listed(self, module: str, name: str) -> Any:
        """Return a class that the program listed by name, importing its module if necessary."""
        if module != _find_main_name():
            try:
                importlib.import_module(module)
            except ImportError as error:
                raise TypeNotFound(
                    f"the type {module}.{name} is allowed, and its module cannot be imported: "
                    f"{type(error).__name__}"
                ) from error
        found = _look_up(module, name)
        if not isinstance(found, type):
            raise TypeNotFound(
                f"a stored value is of type {module}.{name}, which its module does not have: if it was "
                "renamed, keep an alias under the old name"
            )
        return found


class Unfindable(Unserialisable):
    """A class that was made while the program runs: no name leads to it."""


def _split_name(dotted: str) -> TypeName:
    """Return the module and the name in it of a type that the program named with dots: the module is the
    longest one that is imported."""
    parts = dotted.split(".")
    for at in range(len(parts) - 1, 0, -1):
        module = ".".join(parts[:at])
        if module in sys.modules or module == _find_main_name():
            return module, ".".join(parts[at:])
    return ".".join(parts[:-1]), parts[-1]


def get_default_allow() -> Allow:
    """Return the default of ``allow``: ``listed`` in LangGraph's strict mode, else ``imported``."""
    if STRICT_MSGPACK_ENABLED:
        return "listed"
    return "imported"


def name_of(cls: type) -> TypeName:
    """Return a class's module and name. ``__main__`` is replaced by the name under which the script would be
    imported, so that another program finds it."""
    return (_find_stable_name(cls.__module__), cls.__qualname__)


def _find_stable_name(module: str) -> str:
    if module == "__main__":
        return _find_main_name() or module
    return module


def is_data(cls: object) -> bool:
    """Return True if a class is a pydantic model, a dataclass, an enum or a named tuple. Models that act when
    they are made do not count: settings, which read files and the environment, and LangChain's runnables."""
    if not isinstance(cls, type):
        return False
    mro = cls.__mro__
    if Enum in mro:
        return len(mro) > 2 and bool(vars(cls).get("_member_map_"))
    if tuple in mro:
        return any(isinstance(vars(each).get("_fields"), tuple) for each in mro)
    if any(active in mro for active in _list_active_classes()):
        return any(passive in mro for passive in _PASSIVE)
    if BaseModel in mro or cls in (SecretStr, SecretBytes) or is_old_model(cls):
        return True
    return any("__dataclass_fields__" in vars(each) for each in mro)


def is_nameable(cls: type) -> bool:
    """Return True if a program can name a class, as it has to for a codec."""
    return _look_up(cls.__module__, cls.__qualname__) is cls


def is_old_model(cls: type) -> bool:
    """Return True if a class is a model of pydantic's first version."""
    old = sys.modules.get("pydantic.v1.main")
    return old is not None and vars(old).get("BaseModel") in cls.__mro__


def list_types_within(annotation: Any) -> Iterator[type]:
    """Yield a type, and the types that its fields can hold."""
    yield from _within(annotation, set())


def _within(annotation: Any, seen: set[int]) -> Iterator[type]:
    if id(annotation) in seen:
        return
    seen.add(id(annotation))
    if isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is not None:
        for argument in typing.get_args(annotation):
            yield from _within(argument, seen)
        return
    if not isinstance(annotation, type) or annotation.__module__ == "builtins":
        return
    yield annotation
    try:
        hints = typing.get_type_hints(annotation)
    except (NameError, TypeError):
        hints = {}
    for hint in hints.values():
        yield from _within(hint, seen)


def _look_up(module: str, name: str) -> Any:
    """Return the object that a name refers to in an imported module, without running any code of the module;
    ``None`` if there is nothing. Only modules and classes are searched."""
    found: Any = sys.modules.get(module)
    if found is None and module == _find_main_name():
        found = sys.modules.get("__main__")
    for part in name.split("."):
        if not isinstance(found, type | types.ModuleType):
            return None
        found = vars(found).get(part)
    return found


def _find_main_name() -> str | None:
    """Return the name under which the running script would be imported; ``None`` if there is no script."""
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    if spec is not None:
        name: str = spec.name
        return name.removesuffix(".__main__")
    file = getattr(main, "__file__", None)
    if isinstance(file, str):
        return Path(file).stem
    return None


def _list_active_classes() -> Iterator[Any]:
    yield Serializable
    yield Runnable
    settings = sys.modules.get("pydantic_settings")
    if settings is not None:
        yield vars(settings).get("BaseSettings")


def _not_allowed_error(text: str, missing: Sequence[TypeName]) -> TypeNotAllowed:
    error = TypeNotAllowed(text)
    error.types = tuple(missing)
    return error


def _describe_unfindable(cls: type) -> str:
    if "<locals>" in cls.__qualname__:
        why = "it is made inside a function; move it to the top level of its module"
    else:
        why = "its module has another class, or none, under that name"
    return (
        f"an object of type {cls.__module__}.{cls.__qualname__} cannot be stored: the type could not be "
        f"found again by its name, because {why}"
    )


def _join_names(names: Sequence[str]) -> str:
    if len(names) == 1:
        return names[0]
    return f"{', '.join(names[:-1])} and {names[-1]}"


def _load_own_types() -> dict[TypeName, Any]:
    """Return LangGraph's own list of safe types, as far as this Python has them."""
    found: dict[TypeName, Any] = {("re", "compile"): re.compile}
    for module, name in SAFE_MSGPACK_TYPES:
        try:
            found[module, name] = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError):
            continue  # of another release of Python or LangChain
    return found


_OWN = _load_own_types()
OWN_TYPES = frozenset(value for value in _OWN.values() if isinstance(value, type))
"""LangChain's, LangGraph's and the standard library's types that are always allowed."""


def find_own_type(module: object, name: object) -> Any:
    """Return the class of a name if it is always allowed, else ``None``."""
    if isinstance(module, str) and isinstance(name, str):
        return _OWN.get((module, name))
    return None


def find_graph_types(graph: Any) -> set[type]:
    """Return the types that a compiled graph declares: of its schemas, its channels and its tools' arguments,
    and those of its subgraphs."""
    found: set[type] = set()
    for each in (graph, *(inner for _, inner in graph.get_subgraphs(recurse=True))):
        builder = getattr(each, "builder", None)
        declared = [getattr(builder, f"{name}_schema", None) for name in ("state", "input", "output")]
        declared += [getattr(node, "input_schema", None) for node in getattr(builder, "nodes", {}).values()]
        for channel in each.channels.values():
            declared += [getattr(channel, name, None) for name in ("ValueType", "UpdateType")]
        for node in each.nodes.values():
            tools = getattr(node.bound, "tools_by_name", {})
            declared += [getattr(tool, "args_schema", None) for tool in tools.values()]
        for annotation in declared:
            found.update(list_types_within(annotation))
    return found
