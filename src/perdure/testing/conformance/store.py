"""Contract of a store over any driver, in one class."""

from __future__ import annotations

from perdure.testing.conformance.expiry import Expiry
from perdure.testing.conformance.meaning import Meaning
from perdure.testing.conformance.store_operations import Operations


class StoreContract(Operations, Expiry, Meaning):
    """Contract of LangGraph's ``BaseStore`` and of what that leaves open. Subclass it in a test and give it a
    fixture ``backend``: a ``Backend`` around an open, empty driver.

    >>> class TestMine(StoreContract):
    ...     @pytest.fixture
    ...     def backend(self):
    ...         with closing(MyDriver()) as driver:
    ...             yield Backend(driver)
    """
