"""A chat endpoint in a FastAPI application, with LangGraph's API beside it, over one database.

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
    """Return the number of questions and the last one, in place of a model's answer to the conversation."""
    questions = [message.text for message in state["messages"] if message.type == "human"]
    return {"messages": [AIMessage(f"{len(questions)}: {questions[-1]}")]}


builder = StateGraph(MessagesState)
builder.add_node(answer)
builder.add_edge(START, "answer")


class ChatMessage(BaseModel):
    """Message in a conversation with the id ``context_id``; ``thread_id`` would be the same."""

    message: str
    context_id: str | None = None


def create_app(db_url: str | None = None) -> FastAPI:
    """Return the application. It opens its database, by default that of ``DATABASE_URL``, when it starts."""
    app = FastAPI(lifespan=checkpoint_lifespan(db_url, graphs={"chat": builder}, serve=True))
    app.exception_handler(PerdureError)(answer_error)

    @app.post("/chat")
    async def chat(body: ChatMessage, thread_id: RequestThreadId, perdure: OpenedNow) -> dict[str, str]:
        """Answer a message, and store both in the thread."""
        state = await perdure.graph.ainvoke(
            {"messages": [("user", body.message)]}, {"configurable": {"thread_id": thread_id}}
        )
        return {"context_id": thread_id, "answer": state["messages"][-1].text}

    app.mount("/agents", perdure_app(app))
    return app


app = create_app()
