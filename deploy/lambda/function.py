"""The function of the image: LangGraph's API over one graph. Put your graph in the place of this one."""

from typing import Any

from fastapi import FastAPI
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph

from perdure.server import checkpoint_lifespan, perdure_app
from perdure.serverless import lambda_handler


async def answer(state: MessagesState) -> dict[str, Any]:
    """Return the number of questions, in place of a model's answer."""
    return {"messages": [AIMessage(f"question {sum(m.type == 'human' for m in state['messages'])}")]}


builder = StateGraph(MessagesState).add_node("answer", answer).add_edge(START, "answer")
app = FastAPI(lifespan=checkpoint_lifespan(graphs={"agent": builder}, serve=True))
app.mount("/", perdure_app(app))
handler = lambda_handler(app)
