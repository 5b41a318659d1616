"""Says which package a provider's model lacks, or which one raised its error. The error's text is left out:
it may hold a key, or quote what was sent."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.util import find_spec
from traceback import walk_tb

_PACKAGES = {"azure_openai": "langchain-openai", "bedrock": "langchain-aws"}
"""Packages of LangChain's providers whose name does not follow from the provider's."""


def describe_failure(error: Exception) -> str:
    """Return a predicate that follows a model's name: ``needs the package …``, or ``raised …``."""
    if (module := find_missing_module(error)) is not None:
        return f"needs {_describe_package(module)}"
    package = find_raising_package(error)
    return f"raised {type(error).__name__}" + (f" in {package}" if package else "")


def describe_unmade(named: str, error: Exception) -> str:
    """Return why the model of a provider could not be made, and what to do, as text that follows its name.

    Args:
        named: The provider and its model, as they were given.
        error: The error of LangChain or of the provider's package.
    """
    provider, colon, model = named.partition(":")
    if not colon or not provider or not model:
        return "which names no provider and its model (provider:model)"
    if find_spec("langchain") is None:
        package = _PACKAGES.get(provider) or f"langchain-{provider.replace('_', '-')}"
        return f"which needs LangChain and the provider's package: pip install langchain {package}"
    if find_missing_module(error) is not None:
        return f"which {describe_failure(error)}"
    if find_raising_package(error) == "langchain":
        return f"and LangChain knows no provider {provider!r}; check its spelling"
    return f"which {describe_failure(error)}; check that the provider's key is in the environment"


def find_missing_module(error: BaseException) -> str | None:
    """Return the module that could not be imported, if that is an error or one of its causes."""
    for each in _list_causes(error):
        if isinstance(each, ModuleNotFoundError) and each.name:
            return each.name
    return None


def find_raising_package(error: BaseException) -> str | None:
    """Return the package that raised an error: that of its class, else of the last frame outside the standard
    library."""
    package = type(error).__module__.partition(".")[0]
    if package not in _OF_PYTHON:
        return package
    modules = [str(frame.f_globals.get("__name__", "")) for frame, _ in walk_tb(error.__traceback__)]
    packages = [module.partition(".")[0] for module in reversed(modules)]
    return next((name for name in packages if name and name not in (*_OF_PYTHON, "perdure")), None)


_OF_PYTHON = frozenset(sys.stdlib_module_names) - {"__main__"}


def _describe_package(module: str) -> str:
    top = module.partition(".")[0]
    if top.startswith("langchain"):
        name = top.replace("_", "-")
        return f"the package {name}: pip install {name}"
    return f"the package of the module {module}, which is not installed"


def _list_causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and its causes."""
    seen: set[int] = set()
    left: BaseException | None = error
    while left is not None and id(left) not in seen:
        seen.add(id(left))
        yield left
        left = left.__cause__ or left.__context__
