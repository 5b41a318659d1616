"""Middleware for LangChain's ``create_agent``; it needs the extra ``conversation``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any, NotRequired, cast

from langchain.agents.middleware.types import (
    AgentMiddleware,
    AgentState,
    ModelRequest,
    ModelResponse,
    PrivateStateAttr,
)

from perdure.conversation.hook import make_next_summary, make_next_summary_sync, run_off_loop, summary_of
from perdure.conversation.policy import Conversation


class ConversationState(AgentState[Any]):
    """State of an agent with the running summary."""

    conversation_summary: NotRequired[Annotated[dict[str, Any], PrivateStateAttr]]


class ConversationMiddleware(AgentMiddleware[ConversationState, Any, Any]):
    """Middleware that sends the model a window, and keeps a running summary in the agent's state.

    The agent's messages stay as they are. The prompt and the tools are counted, too. Put the middleware last
    in the list, so that it sees what the model is sent. The summary is made after the reply, in its own step.
    A failed summary is logged, and tried again after the next reply.

    Args:
        conversation: The policy.
    """

    state_schema = ConversationState

    def __init__(self, conversation: Conversation) -> None:
        super().__init__()
        self._conversation = conversation

    def wrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]
    ) -> Any:
        """Call the model with a window."""
        return handler(self._fit(request))

    async def awrap_model_call(
        self,
        request: ModelRequest[Any],
        handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]],
    ) -> Any:
        """Call the model with a window."""
        return await handler(await run_off_loop(self._conversation, self._fit, request))

    def after_agent(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        """Fold the messages that left the window, or soon will, into the summary."""
        if self._conversation.summarize is None:
            return None
        return make_next_summary_sync(self._conversation, state)

    async def aafter_agent(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        """Fold the messages that left the window, or soon will, into the summary."""
        if self._conversation.summarize is None:
            return None
        return await make_next_summary(self._conversation, state)

    def _fit(self, request: ModelRequest[Any]) -> ModelRequest[Any]:
        chosen = self._conversation.window(
            request.messages,
            summary=summary_of(request.state),
            tools=request.tools,
            system=request.system_message,
        )
        return request.override(messages=cast("Any", chosen.messages))
