"""Table of the checks: an id, the fault in one line, the reason why it matters, and the fix."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AuditCheck:
    """A check. ``why`` and ``fix`` are sentences that hold for each of its findings."""

    id: str
    title: str
    why: str
    fix: str


BARE_COLLECTION = AuditCheck(
    "bare-collection",
    "a list, dict or set without a reducer, not declared to replace",
    "Each update replaces the whole value: what an earlier turn or a parallel node stored is lost.",
    "Add a reducer, e.g. Annotated[list[str], operator.add], or declare that it replaces: "
    "Annotated[list[str], perdure.Replaces].",
)
IGNORED_REDUCER = AuditCheck(
    "ignored-reducer",
    "a reducer that LangGraph does not use",
    "LangGraph takes the last item of Annotated for the reducer; with another one after it, updates replace.",
    "Move the reducer to the end of Annotated, or remove it.",
)
CONTRADICTED_MARK = AuditCheck(
    "contradicted-mark",
    "a field that declares Replaces and has a reducer",
    "One class declares that the field replaces its value, and another one accumulates it.",
    "Decide for one of them in every class that declares the field.",
)
DUPLICATED_MESSAGES = AuditCheck(
    "duplicated-messages",
    "a reducer of messages that does not deduplicate by id",
    "A message that is sent again, by a retry, a resumed run or an edit, is in the list twice.",
    "Use langgraph.graph.message.add_messages, or merge by the message's id.",
)
UNUSABLE_REDUCER = AuditCheck(
    "unusable-reducer",
    "a reducer that fails for values of the declared type",
    "The first update works, as there is nothing to merge; every later one fails, and the thread is stuck.",
    "Declare the type that the reducer takes, or use a reducer for the declared type.",
)
NOT_ASSOCIATIVE = AuditCheck(
    "not-associative",
    "a reducer whose result depends on how updates are grouped",
    "Updates of parallel nodes and of messages that are combined into one run are grouped differently from "
    "run to run.",
    "Merge so that merge(merge(a, b), c) equals merge(a, merge(b, c)); to reset a value, return "
    "langgraph.types.Overwrite(value).",
)
MUTATING_REDUCER = AuditCheck(
    "mutating-reducer",
    "a reducer that changes its argument",
    "The argument is part of the state, of a checkpoint that is being stored, or of another node's update.",
    "Return a new value, e.g. [*left, *right] or {**left, **right}.",
)
UNSTABLE_REDUCER = AuditCheck(
    "unstable-reducer",
    "a reducer with another result for the same arguments",
    "A step that is repeated after a crash, or replayed, has another state than the run saw.",
    "Create ids, times and random values in a node, and merge them in the reducer.",
)
NOT_BATCHING_INVARIANT = AuditCheck(
    "not-batching-invariant",
    "a reducer of a DeltaChannel whose result depends on how writes are batched",
    "A DeltaChannel is rebuilt from its writes in other batches than those of the run: the rebuilt state "
    "differs from what the run saw.",
    "Make reducer(reducer(state, xs), ys) equal to reducer(state, xs + ys), or use a plain reducer.",
)
UNDECLARED_KEY = AuditCheck(
    "undeclared-key",
    "a node returns a key that no schema declares",
    "LangGraph drops it without an error.",
    "Declare the key in the state, or remove it from the update.",
)
UNKNOWN_NODE = AuditCheck(
    "unknown-node",
    "a node or an edge leads to a node that does not exist",
    "LangGraph ignores it with a line in the log, and the run ends early.",
    "Name one of the graph's nodes, or END.",
)
SWALLOWED_INTERRUPT = AuditCheck(
    "swallowed-interrupt",
    "an interrupt whose exception is caught",
    "interrupt() raises to pause the run; caught by the except clause, the question is never asked.",
    "Move interrupt() out of the try block, or catch only the exceptions of the other calls.",
)
INTERRUPT_IN_LOOP = AuditCheck(
    "interrupt-in-loop",
    "an interrupt in a loop whose question is the same in every round",
    "The rounds cannot be distinguished: an answer that arrives twice is taken for the answer to the next.",
    "Put what differs between the rounds into the question, e.g. an id of the item.",
)
INTERRUPT_ORDER = AuditCheck(
    "interrupt-order",
    "interrupts of one node whose order can change",
    "A resumed node runs again from its start, and answers belong to its interrupts by position: with "
    "another order or number, an answer is taken for another question.",
    "Let only the state decide which questions are asked: compute the rest in an earlier node or in a task, "
    "sort sets, or ask in nodes of their own.",
)
PARALLEL_QUESTIONS = AuditCheck(
    "parallel-questions",
    "a tool node that gets all calls of a message at once, with a tool that asks",
    "The calls run in parallel in one task, and answers belong to its interrupts by position: with two calls "
    "that ask, the quicker one takes the answer to the other one's question.",
    "Send each call to the node on its own, as langchain.agents.create_agent does: return "
    '[Send("tools", [call]) for call in message.tool_calls] from a conditional edge. If the model calls one '
    "tool in a message, ignore the finding.",
)
UNSERIALISABLE = AuditCheck(
    "unserialisable",
    "a field of a type that cannot be stored",
    "The first checkpoint with such a value fails, and the run with it.",
    "Keep plain data in the state, pass the object by the runtime's context or a closure, or give the "
    "checkpointer a codec: codecs=[perdure.Codec(TheType, dump, load)].",
)
NOT_ALLOWED = AuditCheck(
    "not-allowed",
    "a field of a type that the checkpointer's allow does not include",
    "A checkpoint with such a value is refused.",
    "Add the type: db.checkpointer(allow=[TheType]), or Agent(graph, allow=[TheType]).",
)
CHANGED_BY_STORAGE = AuditCheck(
    "changed-by-storage",
    "a field whose value is read back as another type",
    "Checkpoints keep plain containers: subclasses of dict and list are read back as dict and list, and "
    "tuples as lists, so that a resumed run meets another type than the first one.",
    "Declare the plain type, or build the subclass where it is used.",
)
CHECKPOINTED_SUBGRAPH = AuditCheck(
    "checkpointed-subgraph",
    "a graph that a node calls, or inside one without checkpoints, whose steps are stored although nothing "
    "needs them",
    "A graph compiled without checkpointer= stores every step in the caller's thread, also inside a graph "
    "compiled with checkpointer=False, where no later attempt finds them; it has no interrupt that would "
    "need that.",
    "Add it as perdure.runtime.isolated_subgraph(…), inside which nothing is stored, or declare each graph: "
    "compile(checkpointer=True) stores its steps, compile(checkpointer=False) does not.",
)
SUBGRAPH_SAVER = AuditCheck(
    "subgraph-saver",
    "a subgraph with a checkpointer of its own",
    "Its state goes elsewhere than the thread's: neither deleted, pruned nor resumed with it.",
    "Compile it without checkpointer=, or with checkpointer=True for a memory of its own in the thread.",
)
SHARED_SUBGRAPH = AuditCheck(
    "shared-subgraph",
    "a subgraph with checkpointer=True that one node calls several times",
    "All calls continue one and the same state: they see each other's values, and concurrent ones conflict.",
    "Call it once in a node, or compile it without checkpointer=True.",
)
DOUBLED_BY_SUBGRAPH = AuditCheck(
    "doubled-by-subgraph",
    "a field that a subgraph is given and returns, with a reducer that adds what it has already",
    "The subgraph returns the whole value, not what it has added, and the reducer adds all of it once more.",
    "Leave the field out of the subgraph's input_schema or output_schema, or merge by ids, as add_messages.",
)

CHECKS = {
    check.id: check
    for check in (
        BARE_COLLECTION,
        IGNORED_REDUCER,
        CONTRADICTED_MARK,
        DUPLICATED_MESSAGES,
        UNUSABLE_REDUCER,
        NOT_ASSOCIATIVE,
        MUTATING_REDUCER,
        UNSTABLE_REDUCER,
        NOT_BATCHING_INVARIANT,
        UNDECLARED_KEY,
        UNKNOWN_NODE,
        SWALLOWED_INTERRUPT,
        INTERRUPT_IN_LOOP,
        INTERRUPT_ORDER,
        PARALLEL_QUESTIONS,
        UNSERIALISABLE,
        NOT_ALLOWED,
        CHANGED_BY_STORAGE,
        CHECKPOINTED_SUBGRAPH,
        SUBGRAPH_SAVER,
        SHARED_SUBGRAPH,
        DOUBLED_BY_SUBGRAPH,
    )
}
"""All checks by id."""
