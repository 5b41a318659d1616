"""Statements on the application's own tables, executed in the commit that stores a node's writes.

    async def answer(state):
        reply = await model.ainvoke(state["messages"])
        transaction().execute("INSERT INTO answers (text) VALUES (:text)", {"text": reply.text})
        return {"messages": [reply]}

Nothing is sent before that commit, so no connection is held while a model is called. The node's writes
and the effects of the statements are stored together, once, or not at all.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import partial
from threading import Lock
from traceback import walk_tb
from types import TracebackType
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakKeyDictionary, WeakSet, ref

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import WRITES_IDX_MAP
from langgraph.config import get_config
from langgraph.errors import ParentCommand
from langgraph.pregel._loop import PregelLoop

from perdure.errors import NotAllowed
from perdure.langgraph.saver import PerdureSaver
from perdure.langgraph.task_statements import NOTHING, TaskStatements
from perdure.runtime.nodes.sqlalchemy_statements import is_core_statement, render
from perdure.storage.port import MakesStatements

if TYPE_CHECKING:
    from sqlalchemy.sql.expression import Executable

_CALL = "__pregel_call"
_SEND = "__pregel_send"
_RUNTIME = "__pregel_runtime"
_SCRATCHPAD = "__pregel_scratchpad"
_TASK = "__pregel_task_id"
_ISOLATED = "__perdure_isolated"
_OVER = (
    "this attempt of the node is over; call transaction() in the node itself, and pass what it returns to "
    "threads and tasks that end before it"
)

_statements_by_task: WeakKeyDictionary[Any, tuple[int, ref[TaskStatements]]] = WeakKeyDictionary()
"""Number of the latest attempt of each task, with its statements."""
_subgraphs: WeakSet[PregelLoop] = WeakSet()
"""Loops of subgraphs in which statements were given."""
_lock = Lock()


class Transaction:
    """The commit that stores the writes of the current node. Made by ``transaction``."""

    def __init__(self, statements: TaskStatements, maker: MakesStatements) -> None:
        # Only the task's writes keep the statements alive: those of a failed attempt are dropped with them.
        self._statements, self._maker = ref(statements), maker

    def execute(self, statement: str | Executable, parameters: Mapping[str, object] | None = None) -> None:
        """Add a statement to the commit. Nothing is sent to the database, and nothing is returned.

        Args:
            statement: Text with a parameter as ``:name``, or a Core statement of SQLAlchemy.
            parameters: Values by name.

        Raises:
            NotAllowed: The node has ended.
            TooLarge: The statement would exceed the limit of a task's statements.
            TypeError: The argument is not a statement, or the database takes no parameter of such a type.
            ValueError: The parameters are not those of the text, or the text may not stand in a transaction.
        """
        statements = self._statements()
        if statements is None:
            raise NotAllowed(_OVER)
        values = dict(parameters or {})
        if isinstance(statement, str):
            text = statement
        elif is_core_statement(statement):
            text, values = render(statement, values, self._maker.dialect)
        else:
            raise TypeError(
                f"a statement is text, or a Core statement of SQLAlchemy, not {type(statement).__name__}"
            )
        statements.add(self._maker.make(text, values))


def transaction() -> Transaction:
    """Return the commit that stores the writes of the current node, to which statements on the application's
    own tables can be added.

    The statements are executed if the node ends without an error, in order, after its writes and in the same
    transaction; those of an attempt that failed, or that asked a question, are dropped. They run as the user
    and with the settings of the connection that Perdure has. A statement that the database refuses fails the
    step with ``StatementRefused``, and nothing of the step is stored.

    Raises:
        NotAllowed: Called outside of a node, in a graph whose steps are not stored by Perdure, or with the
            durability ``"exit"``; or the database is neither PostgreSQL nor SQLite.
    """
    try:
        config = get_config()
    except RuntimeError as error:
        raise NotAllowed("transaction() belongs to the step of a node; call it inside a node") from error
    return Transaction(*_find_statements(config.get("configurable", {})))


def _find_statements(configurable: Mapping[str, Any]) -> tuple[TaskStatements, MakesStatements]:
    """Return the statements of the task that has this ``configurable``, and the factory that makes them."""
    loop = _find_loop(configurable)
    saver = None if loop is None else loop.checkpointer
    if loop is None or _ISOLATED in configurable or not isinstance(saver, PerdureSaver):
        raise NotAllowed(
            "transaction() needs a graph whose steps are stored by Perdure's checkpointer; in a graph "
            "without checkpoints, return what is to be written to the node that calls it, and give it there"
        )
    if loop.durability == "exit":
        raise NotAllowed(
            'with durability="exit" the writes of a node are not stored, so nothing can be stored with them; '
            'use durability="sync" or "async"'
        )
    maker = require_statements(saver)
    task = configurable[_SCRATCHPAD].get_null_resume  # an object that lives as long as the task
    attempt: int = configurable[_RUNTIME].execution_info.node_attempt
    with _lock:
        latest, made = _statements_by_task.get(task, (0, None))
        statements = None
        if made is not None and latest == attempt:
            statements = made()
        if (
            latest > attempt
            or (latest == attempt and statements is None)
            or _is_over(loop, configurable[_TASK])
        ):
            raise NotAllowed(_OVER)
        if statements is None:
            statements = saver.give_statements(_make_config_of_writes(loop))
            statements.parent = getattr(loop, "_put_checkpoint_fut", None)
            _statements_by_task[task] = attempt, ref(statements)
            configurable[_SEND]([(NOTHING, statements)])
            if _is_over(loop, configurable[_TASK], statements):
                statements.end()
                raise NotAllowed(_OVER)
            if loop.is_nested and loop not in _subgraphs:
                _subgraphs.add(loop)
                cast("Any", loop).stack.push(partial(_pass_to_caller, loop))
    return statements, maker


def _is_over(loop: PregelLoop, task_id: str, statements: TaskStatements | None = None) -> bool:
    """Return True if a task's writes were already passed on to be stored, without ``statements``."""
    if task_id not in loop.tasks:
        return True
    passed = [write for write in loop.checkpoint_pending_writes if write[0] == task_id]
    return any(channel not in WRITES_IDX_MAP for _, channel, _ in passed) and not any(
        value is statements for _, _, value in passed
    )


def _pass_to_caller(
    loop: PregelLoop,
    kind: type[BaseException] | None,
    error: BaseException | None,
    trace: TracebackType | None,
) -> None:
    """Move the statements of a task that left a subgraph by a command to the graph above to the task that
    called the subgraph. The command becomes the caller's result; the task itself has no writes with which its
    statements could be stored."""
    if not isinstance(error, ParentCommand):
        return
    by_task = {
        task.id: [value for _, value in task.writes if isinstance(value, TaskStatements)]
        for task in loop.tasks.values()
    }
    raising = _tasks_that_raised(error) & by_task.keys()
    if not raising and any(by_task.values()):
        raise NotAllowed(
            "statements were given in a subgraph that was left by Command(graph=Command.PARENT), by one of "
            "its nodes, which is not known; give them in the node of the graph above to which it goes"
        )
    for statements in (each for task in raising for each in by_task[task]):
        above, _ = _find_statements(loop.config.get("configurable", {}))
        for statement in statements.close():
            above.add(statement)
        statements.end()


def _tasks_that_raised(error: BaseException) -> set[str]:
    """Return the ids of the tasks that an error passed, from the configs in LangGraph's frames."""
    configs = (frame.f_locals.get("config") for frame, _ in walk_tb(error.__traceback__))
    values = (config.get("configurable") for config in configs if isinstance(config, dict))
    return {value[_TASK] for value in values if isinstance(value, dict) and isinstance(value.get(_TASK), str)}


def require_statements(saver: PerdureSaver) -> MakesStatements:
    """Return the factory of statements for a checkpointer's commits.

    Raises:
        NotAllowed: The checkpointer's database takes no statements of applications.
    """
    maker = saver.statements
    if isinstance(maker, str):
        raise NotAllowed(
            f"a commit on {maker} cannot include statements of an application: transaction() needs "
            "PostgreSQL or SQLite"
        )
    return maker


def _make_config_of_writes(loop: PregelLoop) -> RunnableConfig:
    """Return the config with which the loop will store the writes of its tasks."""
    own = {
        "checkpoint_ns": loop.config.get("configurable", {}).get("checkpoint_ns", ""),
        "checkpoint_id": loop.checkpoint["id"],
    }
    return {"configurable": {**loop.checkpoint_config.get("configurable", {}), **own}}


def _find_loop(configurable: Mapping[str, Any]) -> PregelLoop | None:
    """Return the loop that runs the current task, which alone knows whether its writes are stored. The
    loop is found through the function by which a task schedules others; a node with a timeout wraps it."""
    call = configurable.get(_CALL)
    while call is not None and not isinstance(call, partial):
        call = inspect.getclosurevars(call).nonlocals.get("call")
    loop = None
    if call is not None:
        loop = getattr(call.keywords.get("schedule_task"), "__self__", None)
    if isinstance(loop, PregelLoop):
        return loop
    return None
