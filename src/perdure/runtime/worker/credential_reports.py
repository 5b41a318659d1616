"""Reports the keys of the database and the renewals of its password, whenever either has changed."""

from __future__ import annotations

from perdure.database.handle import DatabaseHandle
from perdure.model.times import to_micros
from perdure.runtime.observers import Observers
from perdure.storage.credentials import PasswordState
from perdure.storage.stored_keys import EncryptionKeys


class CredentialReports:
    """Reports of one worker. They name no key and no password, and need no request to the database or a
    provider.

    Args:
        handle: The database.
        observers: Receive ``database.keys`` and ``database.password``.
    """

    def __init__(self, handle: DatabaseHandle, observers: Observers) -> None:
        self._keys, self._password = handle.keys, handle.driver.capabilities.password
        self._observers = observers
        self._seen_keys: EncryptionKeys | None = None
        self._seen_password: PasswordState | None = None

    def report(self) -> None:
        """Emit what has changed since the last call."""
        if self._keys is not None and (keys := self._keys.current) != self._seen_keys:
            self._seen_keys = keys
            self._observers.event(
                "database.keys", data_keys=len(keys.data_keys), wrapped_at=to_micros(keys.wrapped_at)
            )
        if self._password is not None and (state := self._password.state) != self._seen_password:
            self._seen_password = state
            self._observers.event(
                "database.password", failures=state.failures, ends_at=state.valid_until or ""
            )
