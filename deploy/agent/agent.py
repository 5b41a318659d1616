"""The agent that the examples deploy. It uses no model and needs no key; replace it with yours."""

from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph


async def answer(state: MessagesState) -> dict[str, list[AIMessage]]:
    """Return the number of questions and the last one, in place of a model's answer to the conversation."""
    questions = [message.text for message in state["messages"] if message.type == "human"]
    return {"messages": [AIMessage(f"{len(questions)}: {questions[-1]}")]}


graph = StateGraph(MessagesState).add_node(answer).add_edge(START, "answer").compile()
