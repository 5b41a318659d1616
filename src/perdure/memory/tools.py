"""Tools with which an agent manages and searches the memory of its user.

Their arguments are those of LangMem's tools of the same names, so that prompts written for these work. A
deletion only ends a fact, so that a model's mistake can be undone.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal
from uuid import UUID

from langchain_core.tools import BaseTool, StructuredTool, ToolException
from langgraph.config import get_config, get_store

from perdure.errors import Conflict, NotFound
from perdure.memory.facts import Fact, Remembered
from perdure.memory.memory import Memory
from perdure.memory.policy import UserOf, verified_user
from perdure.memory.users import ROOT, add_tool_root

MANAGE_ABOUT = (
    "Create, update, or delete persistent memories about the user, which are carried over to future "
    "conversations. Call it when the user states a lasting preference or fact, asks to remember something, "
    "or when an existing memory is wrong or outdated. An update or deletion needs the id of the memory."
)
SEARCH_ABOUT = "Search the persistent memories about the user for what is relevant now."

ManageAction = Literal["create", "update", "delete"]


def memory_tools(
    *, user: str | int | UUID | UserOf = verified_user, root: Sequence[str] = ROOT, instructions: str = ""
) -> list[BaseTool]:
    """Return the tools ``manage_memory`` and ``search_memory``, for graphs that run with a store.

    Args:
        user: The user, or a function that returns the user of a run's configurable values; by default the
            verified one.
        root: The namespace that contains the namespaces of all users.
        instructions: Text that is added to the description of ``manage_memory``.
    """
    add_tool_root(root)

    def open_memory() -> Memory:
        configurable = get_config().get("configurable") or {}
        name = user(configurable) if callable(user) else user
        if name is None:
            raise ToolException("this run has no user, so there is no memory to use")
        try:
            return Memory(get_store(), name, root=root)
        except (TypeError, ValueError) as error:
            raise ToolException(f"the user of this run can have no memory: {error}") from error

    def find_thread_id() -> str | None:
        found = (get_config().get("configurable") or {}).get("thread_id")
        if found is None:
            return None
        return str(found)

    def manage(
        content: str | None = None,
        action: ManageAction = "create",
        id: UUID | None = None,  # noqa: A002 - LangMem's name
    ) -> str:
        user_memory, named = open_memory(), _check_arguments(content, action, id)
        with _report_errors():
            if action == "delete":
                fact = user_memory.retract(*named)
            else:
                fact = user_memory.remember(content or "", thread=find_thread_id(), supersedes=named)
            return _describe_change(action, fact)

    async def amanage(
        content: str | None = None,
        action: ManageAction = "create",
        id: UUID | None = None,  # noqa: A002 - LangMem's name
    ) -> str:
        user_memory, named = open_memory(), _check_arguments(content, action, id)
        with _report_errors():
            if action == "delete":
                fact = await user_memory.aretract(*named)
            else:
                fact = await user_memory.aremember(content or "", thread=find_thread_id(), supersedes=named)
            return _describe_change(action, fact)

    def search(
        query: str,
        limit: int = 10,
        offset: int = 0,
        filter: dict[str, Any] | None = None,  # noqa: A002 - LangMem's name
    ) -> tuple[str, list[Remembered]]:
        with _report_errors():
            return _list_found(open_memory().recall(query, limit, offset=offset, filter=filter))

    async def asearch(
        query: str,
        limit: int = 10,
        offset: int = 0,
        filter: dict[str, Any] | None = None,  # noqa: A002 - LangMem's name
    ) -> tuple[str, list[Remembered]]:
        with _report_errors():
            return _list_found(await open_memory().arecall(query, limit, offset=offset, filter=filter))

    return [
        StructuredTool.from_function(
            manage,
            amanage,
            name="manage_memory",
            description=" ".join([MANAGE_ABOUT, instructions]).strip(),
            handle_tool_error=True,
        ),
        StructuredTool.from_function(
            search,
            asearch,
            name="search_memory",
            description=SEARCH_ABOUT,
            response_format="content_and_artifact",
            handle_tool_error=True,
        ),
    ]


@contextmanager
def _report_errors() -> Iterator[None]:
    """Turn errors that the model can do something about into answers of the tool."""
    try:
        yield
    except (NotFound, Conflict, ValueError) as error:
        raise ToolException(str(error)) from error


def _describe_change(action: ManageAction, fact: Fact) -> str:
    if action == "delete":
        return f"Deleted memory {fact.id}"
    return f"{action}d memory {fact.id}"


def _list_found(found: list[Remembered]) -> tuple[str, list[Remembered]]:
    entries = [{"id": each.id, "content": each.text, "noted": each.at.date().isoformat()} for each in found]
    return json.dumps(entries, ensure_ascii=False), found


def _check_arguments(content: str | None, action: ManageAction, key: UUID | None) -> list[str]:
    """Return the id of the memory that is updated or deleted; an empty list for a new one."""
    if action == "create" and key is not None:
        raise ToolException("a new memory has no id yet; leave it out, or use the action update")
    if action != "create" and key is None:
        raise ToolException(f"the action {action} needs the id of a memory; search for it first")
    if action != "delete" and not (content or "").strip():
        raise ToolException(f"the action {action} needs content")
    if key is None:
        return []
    return [str(key)]
