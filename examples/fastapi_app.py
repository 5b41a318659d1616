"""A chat of one's own, with LangGraph's API beside it, over one database.

    pip install "perdure[server,postgres]"
    export DATABASE_URL=postgresql://me@localhost/app
    perdure migrate --db $DATABASE_URL
    uvicorn examples.fastapi_app:app

To try it without a database: ``LANGGRAPH_DEV=true uvicorn examples.fastapi_app:app``.
"""

from fastapi import FastAPI
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph
from pydantic import BaseModel

from perdure import PerdureError
from perdure.server import OpenedNow, RequestThreadId, answer_error, checkpoint_lifespan, perdure_app


async def answer(state: MessagesState) -> dict[str, list[AIMessage]]:
    """Where a model would be asked: it has read the whole conversation."""
    said = [message.text for message in state["messages"] if message.type == "human"]
    return {"messages": [AIMessage(f"{len(said)}: {said[-1]}")]}


builder = StateGraph(MessagesState)
builder.add_node(answer)
builder.add_edge(START, "answer")


class Said(BaseModel):
    """Something said in a conversation. ``context_id`` is its name; ``thread_id`` would be the same."""

    message: str
    context_id: str | None = None


def create_app(db_url: str | None = None) -> FastAPI:
    """The application. Nothing is opened before it starts; then the database is ``DATABASE_URL``'s."""
    app = FastAPI(lifespan=checkpoint_lifespan(db_url, graphs={"chat": builder}, serve=True))
    app.exception_handler(PerdureError)(answer_error)

    @app.post("/chat")
    async def chat(said: Said, thread_id: RequestThreadId, perdure: OpenedNow) -> dict[str, str]:
        """One turn: what was said goes in, what is answered comes out, and both are kept."""
        state = await perdure.graph.ainvoke(
            {"messages": [("user", said.message)]}, {"configurable": {"thread_id": thread_id}}
        )
        return {"context_id": thread_id, "answer": state["messages"][-1].text}

    app.mount("/agents", perdure_app(app))
    return app


app = create_app()
