"""Statements on the application's own tables, made by the commit that stores a node's writes.

    async def answer(state):
        reply = await model.ainvoke(state["messages"])
        transaction().execute("INSERT INTO answers (text) VALUES (:text)", {"text": reply.text})
        return {"messages": [reply]}

Nothing is sent before that commit, so no connection is held while a model is called. Both are stored or
neither is, once.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, ref

from langchain_core.runnables import RunnableConfig
from langgraph.config import get_config
from langgraph.pregel._loop import PregelLoop

from perdure.errors import NotAllowed
from perdure.langgraph.given_statements import NOTHING, GivenStatements
from perdure.langgraph.saver import PerdureSaver
from perdure.runtime.nodes.core_statements import is_core_statement, render
from perdure.storage.port import MakesStatements

if TYPE_CHECKING:
    from sqlalchemy.sql.expression import Executable

_CALL = "__pregel_call"
_SEND = "__pregel_send"
_RUNTIME = "__pregel_runtime"
_SCRATCHPAD = "__pregel_scratchpad"
_ISOLATED = "__perdure_isolated"

_given: WeakKeyDictionary[Any, tuple[int, ref[GivenStatements]]] = WeakKeyDictionary()
_given_lock = Lock()


class Transaction:
    """The commit that stores the writes of the current node. Made by ``transaction``."""

    def __init__(self, given: GivenStatements, maker: MakesStatements) -> None:
        # The task's writes are to hold what was given, and nothing else: a failed attempt's is dropped.
        self._given, self._maker = ref(given), maker

    def execute(self, statement: str | Executable, parameters: Mapping[str, object] | None = None) -> None:
        """Add a statement to the commit. Nothing is sent to the database, and nothing is returned.

        Args:
            statement: Text with a parameter as ``:name``, or a Core statement of SQLAlchemy.
            parameters: Values by name.

        Raises:
            NotAllowed: The node has ended.
            TooLarge: It would be more than a task may give.
            TypeError: It is not a statement, or the database takes no parameter of such a type.
            ValueError: The parameters are not those of the text, or the text may not stand in a transaction.
        """
        given = self._given()
        if given is None:
            raise NotAllowed("this attempt of the node is over; call transaction() in the node again")
        values = dict(parameters or {})
        if isinstance(statement, str):
            text = statement
        elif is_core_statement(statement):
            text, values = render(statement, values, self._maker.dialect)
        else:
            raise TypeError(
                f"a statement is text, or a Core statement of SQLAlchemy, not {type(statement).__name__}"
            )
        given.add(self._maker.make(text, values))


def transaction() -> Transaction:
    """Return the commit that stores the writes of the current node, to add statements on own tables to it.

    They are made if the node ends without an error, in order, after its writes and in the same transaction;
    those of an attempt that failed, or that asked a question, are dropped. They run as the user and with the
    settings of the connection that Perdure has. A statement that the database refuses fails the step with
    ``StatementRefused``, and nothing of the step is stored.

    Raises:
        NotAllowed: Called outside of a node, in a graph whose steps are not stored by Perdure, or with the
            durability ``"exit"``; or the database is neither PostgreSQL nor SQLite.
    """
    try:
        config = get_config()
    except RuntimeError as error:
        raise NotAllowed("transaction() belongs to the step of a node; call it inside a node") from error
    configurable = config.get("configurable", {})
    loop = _loop_of(configurable)
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
    task = configurable[_SCRATCHPAD].get_null_resume  # an object of the task, which lives as long
    attempt: int = configurable[_RUNTIME].execution_info.node_attempt
    with _given_lock:
        known = _given.get(task)
        given = known[1]() if known is not None and known[0] == attempt else None
        if given is None:
            given = saver.give_statements(_config_of_writes(loop))
            given.parent = getattr(loop, "_put_checkpoint_fut", None)
            _given[task] = attempt, ref(given)
            configurable[_SEND]([(NOTHING, given)])
    return Transaction(given, maker)


def require_statements(saver: PerdureSaver) -> MakesStatements:
    """Return what makes statements for a checkpointer's commits.

    Raises:
        NotAllowed: Its database takes none.
    """
    maker = saver.statements
    if isinstance(maker, str):
        raise NotAllowed(
            f"a commit on {maker} cannot include statements of an application: transaction() needs "
            "PostgreSQL or SQLite"
        )
    return maker


def _config_of_writes(loop: PregelLoop) -> RunnableConfig:
    """Return the config with which the loop will store the writes of its tasks."""
    own = {
        "checkpoint_ns": loop.config.get("configurable", {}).get("checkpoint_ns", ""),
        "checkpoint_id": loop.checkpoint["id"],
    }
    return {"configurable": {**loop.checkpoint_config.get("configurable", {}), **own}}


def _loop_of(configurable: Mapping[str, Any]) -> PregelLoop | None:
    """Return the loop that runs the current task, which alone knows if its writes are stored. It is found
    through the function by which a task schedules others, wrapped for a node with a timeout."""
    call = configurable.get(_CALL)
    while call is not None and not isinstance(call, partial):
        call = inspect.getclosurevars(call).nonlocals.get("call")
    loop = None if call is None else getattr(call.keywords.get("schedule_task"), "__self__", None)
    return loop if isinstance(loop, PregelLoop) else None
