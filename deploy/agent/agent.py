"""The agent that the examples deploy. It asks no model and needs no key; put yours in its place."""

from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph


async def answer(state: MessagesState) -> dict[str, list[AIMessage]]:
    """Where a model would be asked: it has read the whole conversation."""
    said = [message.text for message in state["messages"] if message.type == "human"]
    return {"messages": [AIMessage(f"{len(said)}: {said[-1]}")]}


graph = StateGraph(MessagesState).add_node(answer).add_edge(START, "answer").compile()
