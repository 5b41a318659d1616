"""Contract of a checkpointer over any driver, in one class."""

from __future__ import annotations

from perdure.testing.conformance.fences import Fences
from perdure.testing.conformance.going_back import GoingBack
from perdure.testing.conformance.heads import Heads
from perdure.testing.conformance.lineage import Lineage
from perdure.testing.conformance.listing import Listing
from perdure.testing.conformance.retention import Pruning


class SaverContract(Heads, Fences, Lineage, Listing, Pruning, GoingBack):
    """Contract of a checkpointer beyond LangGraph's own suite. Subclass it in a test and give it a fixture
    ``backend``: a ``Backend`` around an open, empty driver.

    >>> class TestMine(SaverContract):
    ...     @pytest.fixture
    ...     def backend(self):
    ...         with closing(MyDriver()) as driver:
    ...             yield Backend(driver)
    """
