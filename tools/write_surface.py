"""Writes the public surface, names with their signatures, to a file: ``python -m tools.write_surface``.

A test compares the file with the code, so that a change of the surface is seen in review.
"""

import dataclasses
import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

TARGET = Path(__file__).resolve().parents[1] / "tests" / "surface.txt"
MODULES = ("perdure", "perdure.admin", "perdure.errors", "perdure.keys", "perdure.runtime")


def surface() -> str:
    """Return the public names of all modules, with their signatures."""
    return "\n".join(_wrap(line) for name in MODULES for line in _module(import_module(name)))


def main() -> None:
    """Write the file."""
    TARGET.write_text(surface(), encoding="utf-8")


def _wrap(line: str) -> str:
    """Return a long signature with a line for each keyword argument."""
    if len(line) <= 110:
        return line
    indent = " " * (len(line) - len(line.lstrip()) + 4)
    return re.sub(r", (?=\w+: )", f",\n{indent}", line)


def _module(module: ModuleType) -> Iterator[str]:
    yield f"# {module.__name__}\n"
    own = (name for name, value in vars(module).items() if inspect.isclass(value))
    for name in sorted(getattr(module, "__all__", own)):
        value = getattr(module, name)
        if inspect.isclass(value):
            yield from _class(name, value)
        elif inspect.isroutine(value):
            yield _function(name, value)
        else:
            yield f"{name}: {type(value).__name__}"
    yield ""


def _class(name: str, cls: type) -> Iterator[str]:
    bases = ", ".join(base.__name__ for base in cls.__bases__ if base is not object)
    yield f"class {name}({bases})" if bases else f"class {name}"
    made: Any = inspect.getattr_static(cls, "__init__")
    if dataclasses.is_dataclass(cls) or _is_ours(made):
        yield f"    __init__{_signature(cls)}"
    for member in sorted(dir(cls)):
        value: Any = inspect.getattr_static(cls, member)
        plain = value.__func__ if isinstance(value, classmethod | staticmethod) else value
        if member.startswith("_"):
            continue
        if isinstance(plain, property):
            if plain.fget is not None and _is_ours(plain.fget):
                yield f"    {member}: {_Text(inspect.signature(plain.fget).return_annotation)!r}"
        elif inspect.isroutine(plain) and _is_ours(plain):
            yield f"    {_function(member, plain)}"


def _function(name: str, value: Any) -> str:
    is_awaited = inspect.iscoroutinefunction(value)
    return f"{'async ' if is_awaited else ''}{name}{_signature(value)}"


def _is_ours(value: Any) -> bool:
    return str(getattr(value, "__module__", "")).startswith("perdure")


def _signature(value: Any) -> str:
    found = inspect.signature(value)
    each = [
        p.replace(annotation=_Text(p.annotation) if p.annotation is not p.empty else p.empty)
        for p in found.parameters.values()
    ]
    ends = found.return_annotation
    text = str(found.replace(parameters=each, return_annotation=ends if ends is found.empty else _Text(ends)))
    # Of an object, the address is not part of the surface, and of a function only its name.
    return re.sub(r"<(?:function )?(\S+)(?: object)? at 0x[0-9a-f]+>", r"\1", text)


class _Text:
    """An annotation as it is written in the source."""

    def __init__(self, annotation: object) -> None:
        self._text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)

    def __repr__(self) -> str:
        return self._text


if __name__ == "__main__":
    main()
