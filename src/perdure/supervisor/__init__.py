"""Supervisor: one function routes every message, isolated workers do the work, and a strong model writes."""

from perdure.supervisor.graph import (
    RollingSummary,
    SummarisedState,
    SupervisedWorker,
    SupervisorState,
    supervisor,
)
from perdure.supervisor.routing import Policy, Route, route_with
from perdure.supervisor.usage import Spent, Usage

__all__ = [
    "Policy",
    "RollingSummary",
    "Route",
    "Spent",
    "SummarisedState",
    "SupervisedWorker",
    "SupervisorState",
    "Usage",
    "route_with",
    "supervisor",
]
