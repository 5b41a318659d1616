"""Supervisor: one function routes every message, isolated workers do the work, and a strong model writes."""

from perdure.supervisor.graph import SummarisedState, Summary, SupervisedWorker, SupervisorState, supervisor
from perdure.supervisor.routing import Policy, Route, route_with
from perdure.supervisor.usage import Spent, Usage

__all__ = [
    "Policy",
    "Route",
    "Spent",
    "SummarisedState",
    "Summary",
    "SupervisedWorker",
    "SupervisorState",
    "Usage",
    "route_with",
    "supervisor",
]
