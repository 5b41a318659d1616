"""Agent cards: what an assistant is, where it is reached, and which credentials it needs."""

from __future__ import annotations

from typing import Any

from a2a.server.request_handlers.response_helpers import agent_card_to_dict
from a2a.types.a2a_pb2 import AgentCard
from a2a.utils.proto_utils import parse_lenient

from perdure.server.assistants import Assistant
from perdure.server.auth.identity import OpenGate
from perdure.server.resources import Caller

_BEARER = "bearer"
_MODES = ["text/plain", "application/json"]


def card(caller: Caller, assistant: Assistant, url: str) -> AgentCard:
    """Return the card of an assistant.

    Args:
        caller: the authenticated user of the request.
        assistant: the assistant.
        url: the URL at which it is reached.
    """
    description = assistant.description or f"The agent {assistant.name!r}."
    skill = {"id": assistant.graph_id, "name": assistant.name, "description": description, "tags": ["agent"]}
    described: dict[str, Any] = {
        "name": assistant.name,
        "description": description,
        "version": str(assistant.version),
        "supportedInterfaces": [
            {"url": url, "protocolBinding": "JSONRPC", "protocolVersion": version}
            for version in ("1.0", "0.3")
        ],
        "capabilities": {"streaming": True, "pushNotifications": caller.host.webhooks is not None},
        "defaultInputModes": _MODES,
        "defaultOutputModes": _MODES,
        "skills": [skill],
    }
    if not isinstance(caller.host.gate, OpenGate):
        described["securitySchemes"] = {_BEARER: {"httpAuthSecurityScheme": {"scheme": "Bearer"}}}
        described["securityRequirements"] = [{"schemes": {_BEARER: {"list": []}}}]
    return parse_lenient(described, AgentCard())


def make_card_document(caller: Caller, assistant: Assistant, url: str) -> dict[str, Any]:
    """Return a card as JSON, with the fields that clients of earlier releases of the protocol read."""
    return agent_card_to_dict(card(caller, assistant, url))
