"""How a Python file becomes a module: what it is called, and what it can import.

A name does not depend on where a project lies or which of its files is loaded first: stored values remember
the module of their type. The same file is one module, however often and however it is named.
"""

from __future__ import annotations

import importlib
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType


class Unplaced(Exception):
    """There is no such file, or it cannot be a module; the message has the mend."""


def names_file(place: str) -> bool:
    """Whether a place is ``file:attribute`` rather than ``module:attribute``."""
    before = place.rpartition(":")[0] or place
    return before.endswith(".py") or "/" in before or "\\" in before


def importable(folder: Path) -> None:
    """Let a folder's modules be imported, before installed ones of the same name."""
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    importlib.invalidate_caches()


def module_of(path: Path, root: Path) -> ModuleType:
    """The module of a file, imported unless it was. ``Unplaced``, or whatever its code raises."""
    if path.suffix != ".py":
        raise Unplaced(f"{path} is no Python file; name one that ends in .py")
    if not path.is_file():
        raise Unplaced(f"there is no file {path}; check the path, which starts at {root}")
    path = path.resolve()
    loaded = _loaded(path)
    if loaded is not None:
        return loaded
    top = _top_package(path.parent)
    return _script(path, root.resolve()) if top is None else _member(path, top)


def _loaded(path: Path) -> ModuleType | None:
    for name, module in list(sys.modules.items()):
        if name != "__main__" and _is_of(module, path):
            return module
    return None


def _is_of(module: ModuleType, path: Path) -> bool:
    # Some entries of sys.modules are no modules, or make attributes up.
    file = getattr(module, "__file__", None)
    return isinstance(file, str) and file.endswith(path.name) and Path(file).resolve() == path


def _top_package(folder: Path) -> Path | None:
    """The outermost package that a folder belongs to; a name with a dot in it can be no package's."""
    top = None
    while (folder / "__init__.py").is_file() and "." not in folder.name:
        top, folder = folder, folder.parent
    return top


def _member(path: Path, top: Path) -> ModuleType:
    """A module of a package, by the name that its neighbours know it under."""
    importable(top.parent)
    parts = path.relative_to(top.parent).with_suffix("").parts
    name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    other = sys.modules.get(parts[0])
    if other is None or _is_of(other, top / "__init__.py"):
        module = importlib.import_module(name)
        if _is_of(module, path):
            return module
        other = module
    raise Unplaced(
        f"{path.name} would be {name}, but {other.__name__} is imported from "
        f"{getattr(other, '__file__', None) or 'elsewhere'}; rename the package {parts[0]}"
    )


def _script(path: Path, root: Path) -> ModuleType:
    """A module of its own; its folder is importable, as Python does it for scripts."""
    importable(path.parent)
    parts = path.relative_to(root).with_suffix("").parts if path.is_relative_to(root) else (path.stem,)
    name = ".".join(parts)
    if name in sys.modules or name in sys.stdlib_module_names:
        raise Unplaced(
            f"{path.name} would be the module {name}, and there is another of this name; rename the file"
        )
    spec = spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise Unplaced(f"Python has no way to import {path}; name a file that ends in .py")
    module = module_from_spec(spec)
    # Where pickle and get_type_hints look for it, and whoever imports it while it is being loaded.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
