"""Differences between a recorded step and its replay, the cause before its consequences."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from langgraph.checkpoint.serde.types import TASKS

from perdure.errors import UnrecordedCall
from perdure.langgraph.call_records import MODEL
from perdure.replay.answering import CallDifference, RefusedCall
from perdure.replay.plain_values import align, snapshot
from perdure.replay.recording import TaskKey, TaskRecord, names_of

Kind = Literal["nodes", "prompt", "call", "unrecorded", "error", "interrupt", "write", "next", "state"]
"""Part that differs: the nodes of the step, what is sent to a model, which calls are made, a call without a
record, an error, an interrupt, a value that a node writes, the nodes that it leads to, or what a reducer
makes of the writes."""

_BRANCH, _JOIN = "branch:to:", "join:"
_INTERNAL = ("__", _BRANCH, _JOIN)
_NO_WRITES = "__no_writes__"
_ORDER: tuple[Kind, ...] = (
    "nodes", "unrecorded", "prompt", "call", "error", "interrupt", "write", "next", "state",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One difference between a recorded step and its replay.

    Attributes:
        kind: The kind of difference.
        step: LangGraph's number of the step.
        checkpoint_id: The checkpoint from which the step started.
        node: The node, empty if the difference is not about a node.
        namespace: The nodes whose subgraphs lead to it.
        channel: The channel, if the difference is about one.
        expected: The recorded value, as plain data.
        found: The value of the replay.
        detail: One sentence about it.
    """

    kind: Kind
    step: int
    checkpoint_id: str
    node: str = ""
    namespace: tuple[str, ...] = ()
    channel: str | None = None
    expected: Any = None
    found: Any = None
    detail: str = ""

    @property
    def place(self) -> str:
        """The step with the node, for people: ``step 3, node worker/agent``."""
        if self.node:
            return f"step {self.step}, node {'/'.join((*self.namespace, self.node))}"
        return f"step {self.step}"

    def as_json(self) -> dict[str, Any]:
        """Return the difference as JSON data."""
        return {**asdict(self), "namespace": list(self.namespace)}


@dataclass(slots=True, kw_only=True)
class Comparison:
    """Comparison of one step.

    Attributes:
        step: LangGraph's number of the step.
        checkpoint_id: The checkpoint from which it started.
        is_whole: True if the recorded step was completed.
        ignored: Channels whose values are not compared.
        found: The differences.
        noise: Number of values that differ as they do in every run.
    """

    step: int
    checkpoint_id: str
    is_whole: bool
    ignored: Collection[str] = ()
    found: list[Difference] = field(default_factory=list[Difference])
    noise: int = 0

    def sort_differences(self) -> list[Difference]:
        """Return the differences: causes first, and those of inner graphs before those of outer ones."""
        return sorted(self.found, key=lambda each: (_ORDER.index(each.kind), -len(each.namespace)))

    def compare_nodes(self, expected: Collection[str], found: Collection[str]) -> None:
        """Compare the nodes that run in the step."""
        if sorted(expected) != sorted(found):
            self._add("nodes", expected=sorted(expected), found=sorted(found), detail="other nodes run")

    def add_refusal(self, refusal: RefusedCall) -> None:
        """Add a call that was refused."""
        *above, node = names_of(refusal.place) or ("",)
        added = Difference(
            kind="unrecorded",
            step=self.step,
            checkpoint_id=self.checkpoint_id,
            node=node,
            namespace=tuple(above),
            detail=refusal.reason,
        )
        if added not in self.found:
            self.found.append(added)

    def add_failure(self, error: Exception) -> None:
        """Add an error that ended the replay outside of a node."""
        self._add("error", found=f"{type(error).__name__}: {error}", detail="the step fails")

    def add_calls(self, differences: Collection[CallDifference]) -> None:
        """Add the calls that are not as recorded."""
        once: dict[tuple[Any, ...], CallDifference] = {}
        for each in differences:
            once.setdefault((each.task and each.task.key, *each[1:]), each)
        for task, kind, name, recorded, parts in once.values():
            what = f"{kind} {name!r}"
            if recorded is not None and name and parts:
                if recorded != name:
                    what += f" ({recorded!r} when it was recorded)"
                detail = f"what is sent to the {what} differs: {', '.join(parts)}"
                self._add("prompt" if kind == MODEL else "call", task, detail=detail)
                continue
            if recorded is None:
                detail = f"calls the {what}, which was not called"
            elif not name:
                detail = f"does not call the {kind} {recorded!r} any more"
            else:
                detail = f"calls the {what} instead of {recorded!r}"
            self._add("call", task, None, recorded, name or None, detail)

    def compare_tasks(
        self,
        expected: Mapping[TaskKey, TaskRecord],
        found: Mapping[TaskKey, TaskRecord],
        unreplayed: Collection[TaskKey],
        *,
        is_cut: bool,
    ) -> None:
        """Compare tasks with what they wrote.

        Args:
            expected: The recorded tasks, those of subgraphs included.
            found: The tasks of the replay.
            unreplayed: Tasks whose tools were answered, so that tasks inside these tools were recorded but
                not replayed.
            is_cut: True if the replay ended by an error, so that other tasks may be missing.
        """
        if self.is_whole and not is_cut:
            names = [task.node for key, task in expected.items() if len(key) == 1]
            self.compare_nodes(names, [task.node for key, task in found.items() if len(key) == 1])
        for key, task in expected.items():
            other = found.get(key)
            if other is not None:
                if key in unreplayed and not task.calls and other.interrupts is None:
                    # Its tool was answered by a message, which does not show whether the tool asked: do not
                    # compare interrupts.
                    task.interrupts = None
                self._compare_task(task, other)
            elif len(key) > 1 and not any(key[: len(at)] == at for at in unreplayed) and key[:-1]:
                self._add_missing(task, found)
        for key, task in found.items():
            if key not in expected and len(key) > 1 and self.is_whole and not is_cut:
                self._add("nodes", task, detail="runs, and did not when it was recorded")

    def _add_missing(self, task: TaskRecord, found: Mapping[TaskKey, TaskRecord]) -> None:
        above = next(
            (found[task.key[:end]] for end in range(len(task.key) - 1, 0, -1) if task.key[:end] in found),
            None,
        )
        if above is not None and (above.is_finished or above.interrupts is not None):
            self._add("nodes", task, detail="does not run any more")

    def _compare_task(self, expected: TaskRecord, found: TaskRecord) -> None:
        if not expected.is_finished and expected.interrupts is None and expected.error is None:
            return
        if found.error is not None:
            if str(found.error).startswith(f"{UnrecordedCall.__name__}("):
                return  # the refused call is already among the differences
            if expected.error is None or snapshot(expected.error) != found.error:
                detail = "raises an error" if expected.error is None else "raises another error"
                before = snapshot(expected.error)
                self._add("error", expected, expected=before, found=found.error, detail=detail)
            return
        if expected.interrupts is not None or found.interrupts is not None:
            now = self._align(expected.interrupts, found.interrupts)
            if now != expected.interrupts:
                self._add("interrupt", expected, None, expected.interrupts, now, "its interrupts differ")
        if expected.is_finished and found.is_finished:
            self._compare_writes(expected, found)
        elif expected.is_finished != found.is_finished and expected.interrupts == found.interrupts:
            detail = "ends, and did not when it was recorded"
            if expected.is_finished:
                detail = "does not end any more"
            self._add("error", expected, detail=detail)

    def _compare_writes(self, expected: TaskRecord, found: TaskRecord) -> None:
        for name in dict.fromkeys((*expected.writes, *found.writes)):
            if name in self.ignored or name == _NO_WRITES or name.startswith((_BRANCH, _JOIN)):
                continue
            before, after = (
                [snapshot(value) for value in each.writes.get(name, [])] for each in (expected, found)
            )
            after = self._align(before, after)
            if before != after:
                shown = _simplify(before), _simplify(after)
                if name == TASKS:
                    self._add("next", expected, None, *shown, "sends other tasks")
                else:
                    self._add("write", expected, name, *shown, f"writes something else to {name!r}")
        expected_next, found_next = (_list_next_nodes(each) for each in (expected, found))
        if expected_next != found_next:
            self._add("next", expected, None, expected_next, found_next, "leads to other nodes")

    def compare_state(
        self, expected: Mapping[str, Any], found: Mapping[str, Any], deltas: Collection[str]
    ) -> None:
        """Compare the values of channels after the step, except those whose writes differ already.

        Args:
            expected: The recorded values, as plain data.
            found: Those of the replay.
            deltas: Channels that are stored as writes only.
        """
        differing = {each.channel for each in self.found if each.kind == "write" and not each.namespace}
        for name in sorted({*expected, *found}):
            if name in differing or name in self.ignored or name in deltas or name.startswith(_INTERNAL):
                continue
            now = self._align(expected.get(name), found.get(name))
            if now != expected.get(name):
                self._add(
                    "state", None, name, expected.get(name), now, f"the channel {name!r} ends up different"
                )

    def _align(self, expected: Any, found: Any) -> Any:
        out, count = align(expected, found)
        self.noise += count
        return out

    def _add(
        self,
        kind: Kind,
        task: TaskRecord | None = None,
        channel: str | None = None,
        expected: Any = None,
        found: Any = None,
        detail: str = "",
    ) -> None:
        self.found.append(
            Difference(
                kind=kind,
                step=self.step,
                checkpoint_id=self.checkpoint_id,
                node="" if task is None else task.node,
                namespace=() if task is None else task.namespace,
                channel=channel,
                expected=expected,
                found=found,
                detail=detail,
            )
        )


def _list_next_nodes(task: TaskRecord) -> list[str]:
    return sorted(
        name.removeprefix(_BRANCH).removeprefix(_JOIN)
        for name in task.writes
        if name.startswith((_BRANCH, _JOIN))
    )


def _simplify(values: list[Any]) -> Any:
    """Return the only value of a channel, the list if there are several, ``None`` if there is none."""
    if not values:
        return None
    if len(values) == 1:
        return values[0]
    return values


def leads_on(versions: Mapping[str, Any], seen: Mapping[str, Mapping[str, Any]]) -> bool:
    """Return True if a checkpoint has a trigger that no node has consumed, so that the thread was to go
    on."""
    return any(_is_newer(name, version, seen) for name, version in versions.items())


def _is_newer(name: str, version: Any, seen: Mapping[str, Mapping[str, Any]]) -> bool:
    if not name.startswith((_BRANCH, _JOIN, TASKS)):
        return False
    consumed = [nodes[name] for nodes in seen.values() if name in nodes]
    return not consumed or max(consumed) < version
