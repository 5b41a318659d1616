"""Supervisor: one function routes every message, isolated workers do the work, and a strong model writes."""

from perdure.supervisor.graph import SupervisedWorker, SupervisorState, supervisor
from perdure.supervisor.routing import Policy, Route, route_with
from perdure.supervisor.usage import Spent, Usage

__all__ = [
    "Policy",
    "Route",
    "Spent",
    "SupervisedWorker",
    "SupervisorState",
    "Usage",
    "route_with",
    "supervisor",
]
