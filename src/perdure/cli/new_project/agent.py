"""An agent that answers each message.

Without a model it counts the messages and repeats the last one, so that it runs without a key. To use a
model, set MODEL in `.env`.
"""

import os
from typing import Any

from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph


def answer(state: MessagesState) -> dict[str, Any]:
    """Answer the last message."""
    messages = state["messages"]
    if model := os.environ.get("MODEL"):
        from langchain.chat_models import init_chat_model

        return {"messages": [init_chat_model(model).invoke(messages)]}
    count = sum(message.type == "human" for message in messages)
    return {"messages": [AIMessage(f"This is your message number {count}: {messages[-1].text}")]}


graph = StateGraph(MessagesState).add_node(answer).add_edge(START, "answer").compile()
