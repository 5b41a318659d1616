"""Import of Python files: their module names, and the folders that they can import from.

Stored values refer to the module of their type by its name, so a name does not depend on where a project lies
or which of its files is loaded first. A file is one module, however often and by whichever path it is loaded.
"""

from __future__ import annotations

import importlib
import sys
from difflib import get_close_matches
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType


class Unplaced(Exception):
    """No such file or module, or a file that cannot be a module; the message has advice."""


def names_file(place: str) -> bool:
    """Return True if a place is ``file:attribute`` rather than ``module:attribute``."""
    before = place.rpartition(":")[0] or place
    return before.endswith(".py") or "/" in before or "\\" in before


def make_importable(folder: Path) -> None:
    """Make a folder's modules importable, before installed ones of the same name."""
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    importlib.invalidate_caches()


def module_of(path: Path, root: Path) -> ModuleType:
    """Return the module of a file; import it on first use.

    Raises:
        Unplaced: There is no such file, or it cannot be a module. Errors of its code are raised unchanged.
    """
    if path.suffix != ".py":
        raise Unplaced(f"{path} is not a Python file; name one that ends in .py")
    if not path.is_file():
        advice = suggest_similar(path) or f"check the path, which starts at {root}"
        raise Unplaced(f"there is no file {path}; {advice}")
    path = path.resolve()
    for name, module in list(sys.modules.items()):
        if name != "__main__" and _is_module_of(module, path):
            return module
    top = _find_top_package(path.parent)
    if top is None:
        return _import_script(path, root.resolve())
    return _import_member(path, top)


def suggest_similar(path: Path) -> str:
    """Return a question for the Python file of the same folder that a wrong path may mean, empty if none is
    similar."""
    stems = [each.stem for each in path.parent.glob("*.py") if each.is_file()]
    similar = get_close_matches(path.stem, stems, 1)
    return f"did you mean {similar[0]}.py?" if similar else ""


def _is_module_of(module: ModuleType, path: Path) -> bool:
    # Some entries of sys.modules are not modules, or return any attribute.
    file = getattr(module, "__file__", None)
    return isinstance(file, str) and file.endswith(path.name) and Path(file).resolve() == path


def _find_top_package(folder: Path) -> Path | None:
    """Return the outermost package that contains a folder; a folder with a dot in its name is not a
    package."""
    top = None
    while (folder / "__init__.py").is_file() and "." not in folder.name:
        top, folder = folder, folder.parent
    return top


def _import_member(path: Path, top: Path) -> ModuleType:
    """Import a module of a package under the name that its package uses."""
    make_importable(top.parent)
    parts = path.relative_to(top.parent).with_suffix("").parts
    name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    other = sys.modules.get(parts[0])
    if other is None or _is_module_of(other, top / "__init__.py"):
        module = importlib.import_module(name)
        if _is_module_of(module, path):
            return module
        other = module
    raise Unplaced(
        f"{path.name} would be {name}, but {other.__name__} is imported from "
        f"{getattr(other, '__file__', None) or 'elsewhere'}; rename the package {parts[0]}"
    )


def _import_script(path: Path, root: Path) -> ModuleType:
    """Import a file outside of packages; its folder is importable, as Python does it for scripts."""
    make_importable(path.parent)
    name = path.stem
    if path.is_relative_to(root):
        name = ".".join(path.relative_to(root).with_suffix("").parts)
    if name in sys.modules or name in sys.stdlib_module_names:
        raise Unplaced(
            f"{path.name} would be the module {name}, and there is another of this name; rename the file"
        )
    spec = spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise Unplaced(f"Python has no way to import {path}; name a file that ends in .py")
    module = module_from_spec(spec)
    # For pickle and get_type_hints, and for circular imports while it is being loaded.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
