"""The promises of Perdure as tests: subclass a contract, give it its fixture, and pytest runs them.

``DriverContract`` is for authors of a driver: what the six requests of the storage port promise.
``SaverContract`` and ``StoreContract`` are one layer up: what a checkpointer and a store over that driver
promise.
"""

from perdure.testing.conformance.backend import Backend, Narrow
from perdure.testing.conformance.contracts import (
    Awaited,
    Blocking,
    DriverContract,
    SaverContract,
    StoreContract,
)

__all__ = ["Awaited", "Backend", "Blocking", "DriverContract", "Narrow", "SaverContract", "StoreContract"]
