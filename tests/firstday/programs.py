"""Programs as a new user writes them in the first hours. Each is a file of a project of its own."""

MODELS = '''
import enum
from typing import Annotated

from langgraph.graph.message import add_messages
from pydantic import BaseModel
from typing_extensions import TypedDict


class Mood(enum.Enum):
    CALM = "calm"
    CROSS = "cross"


class Contact(BaseModel):
    name: str
    mood: Mood = Mood.CALM


class Chat(TypedDict, total=False):
    messages: Annotated[list, add_messages]
    structured_response: Contact


class Form(BaseModel):
    """A state that is a model."""

    steps: int = 0
    contact: Contact | None = None
'''

COMMON = """
import sys

import perdure

URL = "sqlite:///threads.db"
THREAD = {"configurable": {"thread_id": "ada"}}


def database():
    return perdure.connect_sync(URL, migrate=True)
"""

STRUCTURED = """
import sys
from langchain_core.language_models import FakeListChatModel
from langchain_core.runnables import RunnableLambda
from langgraph.prebuilt import create_react_agent
from common import THREAD, database
from models import Contact


class Model(FakeListChatModel):
    def bind_tools(self, tools, **kwargs):
        return self

    def with_structured_output(self, schema, **kwargs):
        return RunnableLambda(lambda messages: schema(name="Ada"))


with database() as db:
    model = Model(responses=["I am Ada."])
    agent = create_react_agent(model, [], response_format=Contact, checkpointer=db.checkpointer())
    if sys.argv[1] == "ask":
        agent.invoke({"messages": [("user", "who are you?")]}, THREAD)
    state = agent.get_state(THREAD).values
    assert state["structured_response"] == Contact(name="Ada"), state
    print(len(state["messages"]))
"""

FORM = """
from langgraph.graph import START, StateGraph
from common import THREAD, database
from models import Contact, Form, Mood

builder = StateGraph(Form)
ADA = Contact(name="Ada", mood=Mood.CROSS)
builder.add_node("step", lambda form: {"steps": form.steps + 1, "contact": ADA})
builder.add_edge(START, "step")

with database() as db:
    graph = builder.compile(checkpointer=db.checkpointer())
    before = graph.get_state(THREAD).values
    if before:
        assert before["contact"].mood is Mood.CROSS
    print(graph.invoke({"steps": before.get("steps", 0)}, THREAD)["steps"])
"""

MOODS = """
from typing_extensions import TypedDict
from langgraph.graph import START, StateGraph
from common import THREAD, database
from models import Mood


class State(TypedDict):
    mood: Mood
    past: dict[str, list[Mood]]


builder = StateGraph(State)
builder.add_node("turn", lambda state: {"mood": Mood.CROSS, "past": {"moods": [state["mood"]]}})
builder.add_edge(START, "turn")

with database() as db:
    graph = builder.compile(checkpointer=db.checkpointer())
    before = graph.get_state(THREAD).values
    if before:
        assert before["mood"] is Mood.CROSS and before["past"]["moods"][0] is Mood.CALM, before
    graph.invoke({"mood": Mood.CALM}, THREAD)
    print(bool(before))
"""

FRAMES = """
import io
import sys

import pandas
import perdure
from typing_extensions import TypedDict
from langgraph.graph import START, StateGraph
from common import THREAD, database


class State(TypedDict):
    table: pandas.DataFrame


FRAMES = perdure.Codec(
    pandas.DataFrame,
    dump=lambda frame: frame.to_json(orient="table"),
    load=lambda text: pandas.read_json(io.StringIO(text), orient="table"),
)
builder = StateGraph(State)
builder.add_node("double", lambda state: {"table": state["table"] * 2})
builder.add_edge(START, "double")

with database() as db:
    graph = builder.compile(checkpointer=db.checkpointer(codecs=[FRAMES] if sys.argv[1] == "codec" else []))
    before = graph.get_state(THREAD).values.get("table", pandas.DataFrame({"sold": [1, 2]}))
    print(graph.invoke({"table": before}, THREAD)["table"]["sold"].sum())
"""

TWO_GRAPHS = """
from langgraph.graph import START, MessagesState, StateGraph
from common import database


def graph(name, saver):
    builder = StateGraph(MessagesState)
    builder.add_node(name, lambda state: {"messages": [("ai", f"{name} {len(state['messages'])}")]})
    return builder.add_edge(START, name).compile(checkpointer=saver)


with database() as db:
    saver = db.checkpointer()
    for name in ("left", "right"):
        at = {"configurable": {"thread_id": name}}
        print(graph(name, saver).invoke({"messages": [("user", "hi")]}, at)["messages"][-1].content)
"""

FAILING = """
import sys
from langgraph.graph import START, MessagesState, StateGraph
from common import THREAD, database


def paid(state):
    print("paid")
    return {"messages": [("ai", "an answer")]}


def failing(state):
    if sys.argv[1] == "fail":
        raise RuntimeError("the node has a mistake")
    return {"messages": [("ai", "done")]}


builder = StateGraph(MessagesState).add_node("paid", paid).add_node("failing", failing)
builder.add_edge(START, "paid").add_edge("paid", "failing")

with database() as db:
    graph = builder.compile(checkpointer=db.checkpointer())
    given = {"messages": [("user", "hi")]} if sys.argv[1] == "fail" else None
    print(graph.invoke(given, THREAD)["messages"][-1].content)
"""

LISTING = """
from common import database

with database() as db:
    for thread in db.threads():
        print(thread.thread_id, bool(thread.updated_at))
    print(db.fsck())
"""

STORE = """
from langgraph.store.base import PutOp
from common import database


def item(n):
    return PutOp(("notes", str(n % 10)), f"n{n}", {"number": n})


with database() as db:
    store = db.store()
    for start in range(0, 10_000, 1_000):
        store.batch([item(n) for n in range(start, start + 1_000)])
    found = store.search(("notes", "3"), filter={"number": 4713})
    assert [each.value["number"] for each in found] == [4713]
    assert store.get(("notes", "9"), "n9999").value["number"] == 9999
    print(len(store.search(("notes",), limit=10)), len(store.list_namespaces(prefix=("notes",))))
"""

SERVED = """
from langgraph.graph import START, StateGraph
from models import Chat, Contact

builder = StateGraph(Chat)
builder.add_node("answer", lambda state: {"structured_response": Contact(name="Ada")})
builder.add_edge(START, "answer")
graph = builder.compile()

if __name__ == "__main__":
    from common import THREAD, database

    with database() as db:
        built = builder.compile(checkpointer=db.checkpointer())
        built.invoke({"messages": [("user", "from the library")]}, THREAD)
"""
