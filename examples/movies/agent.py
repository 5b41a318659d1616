"""The graph, and how this application compiles it."""

from __future__ import annotations

from functools import partial
from typing import Any

from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, MessagesState, StateGraph

import perdure
from perdure.runtime import transaction

from .database import answer_message

MOVIES = (
    "Stalker: three men walk to a room that grants wishes",
    "Playtime: Monsieur Hulot gets lost in a city of glass",
    "Ran: a lord divides his land among three sons",
    "Daisies: two young women play tricks on everybody",
    "Close-Up: a man pretends to be a film director",
)


async def recommend(state: MessagesState, config: RunnableConfig) -> dict[str, Any]:
    """Recommend another movie for each question, in place of a model that reads the conversation. Where the
    messages' table is in the database of the threads, the answer is stored there in the step's own commit."""
    asked = [message for message in state["messages"] if message.type == "human"]
    movie = MOVIES[(len(asked) - 1) % len(MOVIES)]
    answer = f"{len(asked)}: Watch {movie}."
    if (message_id := config.get("configurable", {}).get("message_id")) is not None:
        transaction().execute(answer_message(message_id, answer))
    return {"messages": [AIMessage(answer)]}


builder = StateGraph(MessagesState).add_node(recommend).add_edge(START, "recommend")

compile_graph = partial(perdure.compile_graph, builder)
"""``compile_graph(checkpointer=saver)`` returns the graph."""
