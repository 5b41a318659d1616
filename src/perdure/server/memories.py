"""Memories of the user of a request, and the part of the store that holds those of other users."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from perdure.memory.memory import Memory
from perdure.memory.policy import VERIFIED_USER
from perdure.memory.users import ROOT, list_tool_roots, namespace_of
from perdure.server.auth.identity import Refusal
from perdure.server.resources import Caller

_ANY = "*"
"""Label with which the listing of namespaces matches every label."""


def memories_of(caller: Caller) -> list[Memory]:
    """Return the user's memories, one for each namespace that the graphs have. ``Refusal`` with 404 if no
    graph has a memory, or the user has none."""
    found = _find_memories(caller)
    if not found:
        raise Refusal(404, "no graph of this server has a memory of this user; see memory.enabled")
    return list(found.values())


def require_own(caller: Caller, labels: Sequence[str]) -> None:
    """Raise ``Refusal`` with 403 if a namespace of the store, or one below it, holds what is remembered of
    other users. Without authentication there is only one user.

    Args:
        caller: the authenticated user of the request.
        labels: the namespace, or the prefix of namespaces; a label may be ``*``.
    """
    if caller.is_program or not caller.user.identity:
        return
    policy_roots = {
        agent.memory.root for agent in caller.host.runtime.graphs.values() if agent.memory is not None
    }
    # Tools may keep memories below further roots, which no agent's policy names.
    roots = policy_roots | list_tool_roots()
    allowed = {*_find_memories(caller), *_list_tool_namespaces(caller, {*roots, ROOT} - policy_roots)}
    is_own = any(_is_within(labels, namespace, roots) for namespace in allowed)
    # Below ``ROOT`` there need not be any memories, so only namespaces within it are refused: a server
    # without memories answers a search of all namespaces, as LangGraph's does.
    if is_own or not (any(_meet(labels, root) for root in roots) or tuple(labels[: len(ROOT)]) == ROOT):
        return
    hidden = ", ".join(repr(".".join(root)) for root in sorted({*roots, ROOT}))
    raise Refusal(
        403,
        f"namespaces below {hidden} hold what is remembered of users; name another one, or read your own "
        "memory at /memory",
    )


def _find_memories(caller: Caller) -> dict[tuple[str, ...], Memory]:
    found: dict[tuple[str, ...], Memory] = {}
    verified = {VERIFIED_USER: caller.user.dict()}
    for agent in caller.host.runtime.graphs.values():
        if agent.memory is None:
            continue
        try:
            user = agent.memory.user_of(verified)
            if user is None:
                continue
            memory = Memory(caller.runtime.store(), user, root=agent.memory.root)
        except (TypeError, ValueError):
            # This id cannot be part of a namespace: runs of this user remember nothing, either.
            continue
        found[memory.namespace] = memory
    return found


def _list_tool_namespaces(caller: Caller, roots: Iterable[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Return the namespaces in which tools keep what they remember of the verified user."""
    try:
        return [namespace_of(caller.user.identity, root) for root in roots]
    except ValueError:
        # This id cannot be part of a namespace.
        return []


def _is_within(labels: Sequence[str], namespace: tuple[str, ...], roots: Iterable[tuple[str, ...]]) -> bool:
    """Return True if labels lie within the namespace of one user and cannot reach what is remembered of
    others. They can if the namespace has a label ``*``, which matches every user, or if they meet a root
    inside of the namespace, which has memories of its own."""
    size = len(namespace)
    inner = [root for root in roots if root[:size] == namespace]
    return (
        _ANY not in namespace
        and tuple(labels[:size]) == namespace
        and not any(_meet(labels, root) for root in inner)
    )


def _meet(labels: Sequence[str], root: Sequence[str]) -> bool:
    """Return True if one of two namespaces may lie within the other; ``*`` stands for any label."""
    return all(_ANY in (mine, theirs) or mine == theirs for mine, theirs in zip(labels, root, strict=False))
