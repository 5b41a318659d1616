"""The keys of a database: one record, in which the data keys are encrypted with a key that a provider wraps.

A database has data keys, of which the newest encrypts, and one digest key for the names of chunks, which
never changes, so that no rotation renames stored chunks. One record contains them all, encrypted with a key
of the record's own. The record also contains this key, wrapped by the provider. So opening a database costs
one call of the provider, and a rotation replaces one record, by compare-and-set. A process that encounters an
unknown data key reads the record again; a process that writes reads it again once a minute.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import UTC, datetime
from math import inf
from typing import Any, NamedTuple, TypeVar, cast

import ormsgpack

from perdure.errors import (
    BadSetting,
    Conflict,
    DecryptionError,
    KeyMissing,
    PerdureError,
    TooLarge,
    Unavailable,
)
from perdure.model.ops import Commit, Committed, Expect, Expectation, Fetch, FindThreads, Get, Put
from perdure.model.records import RESERVED, SEAL, SPACES, Record
from perdure.storage.encryption import DataKeys, Keyring, SecretKey, UnknownDataKey
from perdure.storage.key_providers import KEY_SIZE, REMEDY, KeyProvider, ask, require_cryptography
from perdure.storage.key_usage import count_by_data_key
from perdure.storage.port import Driver

T = TypeVar("T")

_log = logging.getLogger("perdure.storage.keys")

_RECORD = Get(SEAL, ("key",))
_FORMAT = b"perdure.keys 1"
_NONCE_SIZE = 12
_ANSWER_S = 20.0
_REFRESH_S = 60.0
"""Seconds after which a process that writes looks for a newer data key."""
_UNFOUND_S = 5.0
"""Seconds for which a data key that was not found is not looked for again."""
_UNFOUND_MOST = 256
_DATA_KEYS_MOST = 1000
_KEY_ID_MOST = 2048
_WRAPPED_MOST = 64 << 10


@dataclass(frozen=True, slots=True)
class DataKey:
    """A key that encrypts values.

    Attributes:
        id: The id of eight hex digits that is stored with each encrypted value.
        created_at: When it was created.
    """

    id: str
    created_at: datetime


@dataclass(frozen=True, slots=True)
class EncryptionKeys:
    """The keys of an encrypted database.

    Attributes:
        wrapping_key: The provider's id of the key that wraps the others.
        wrapped_at: When the keys were wrapped.
        data_keys: The keys that encrypt values, newest first: the first encrypts, all decrypt.
    """

    wrapping_key: str
    wrapped_at: datetime
    data_keys: tuple[DataKey, ...]


class _KeyRecord(NamedTuple):
    """The record of the keys with its content decrypted, as read or to be stored."""

    version: int
    body: bytes
    wrapping_key: str
    wrapped_at: int
    keys: DataKeys

    def view(self) -> EncryptionKeys:
        data_keys = tuple(DataKey(key.id.hex(), _to_datetime(key.created_at)) for key in self.keys.secrets)
        return EncryptionKeys(self.wrapping_key, _to_datetime(self.wrapped_at), data_keys)


class _Wrapping(NamedTuple):
    """A provider of wrapping keys, and the database that it is used for."""

    provider: KeyProvider
    url: str
    has_threads: bool

    def seal(self, keys: DataKeys, version: int) -> _KeyRecord:
        """Encrypt the keys with a new record key, wrap that, and verify that the provider can unwrap it.

        Raises:
            PerdureError: The provider failed.
        """
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        record_key = secrets.token_bytes(KEY_SIZE)
        key_id, wrapped = self._wrap(record_key)
        if self.unwrap(key_id, wrapped) != record_key:
            raise DecryptionError(
                f"{self.url}: {self._name} does not unwrap what it wrapped with {key_id}; nothing was changed"
            )
        now, nonce = int(time.time()), secrets.token_bytes(_NONCE_SIZE)
        clear = ormsgpack.packb(
            [now, keys.digest_key, [[key.id, key.created_at, key.key] for key in keys.secrets]]
        )
        sealed = nonce + AESGCM(record_key).encrypt(nonce, clear, _pack_context(key_id, wrapped))
        return _KeyRecord(version, _pack(key_id, wrapped, sealed), key_id, now, keys)

    def open(self, record: Record) -> _KeyRecord:
        """Return the keys of a record.

        Raises:
            KeyMissing: The provider does not have the record's wrapping key.
            DecryptionError: The record was changed.
            PerdureError: The provider failed.
        """
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        key_id, wrapped, sealed = _parse(record, self.url)
        record_key = self.unwrap(key_id, wrapped)
        try:
            cipher, bound = AESGCM(record_key), _pack_context(key_id, wrapped)
            clear = cipher.decrypt(sealed[:_NONCE_SIZE], sealed[_NONCE_SIZE:], bound)
            at, digest_key, entries = ormsgpack.unpackb(clear)
        except (InvalidTag, ValueError) as error:
            # The cipher raises ValueError for data that is too short.
            raise DecryptionError(
                f"{self.url}: {self._name} returned another key than the one that was wrapped with {key_id}, "
                "or the record of the keys was changed since; it was not used"
            ) from error
        data_keys = tuple(SecretKey(data_key, created_at, key) for data_key, created_at, key in entries)
        return _KeyRecord(record.version, record.body, key_id, at, DataKeys(data_keys, digest_key))

    def unwrap(self, key_id: str, wrapped: bytes) -> bytes:
        plain = self._ask(lambda: self.provider.unwrap(key_id, wrapped), key_id)
        if not isinstance(cast(object, plain), bytes) or len(plain) != KEY_SIZE:
            raise DecryptionError(f"{self.url}: {self._name} returned no key for {key_id}")
        return plain

    @property
    def _name(self) -> str:
        return f"the key provider {type(self.provider).__name__}"

    def _wrap(self, plain: bytes) -> tuple[str, bytes]:
        answer: Any = self._ask(lambda: self.provider.wrap(plain), None)
        if not (
            isinstance(answer, tuple)
            and len(answer) == 2
            and isinstance(answer[0], str)
            and isinstance(answer[1], bytes)
            and 0 < len(answer[0]) <= _KEY_ID_MOST
            and answer[0].isprintable()
            and 0 < len(answer[1]) <= _WRAPPED_MOST
        ):
            raise BadSetting(f"{self.url}: {self._name} did not return (key_id, wrapped) from wrap()")
        if plain in answer[1]:
            raise BadSetting(f"{self.url}: {self._name} returned the key itself from wrap()")
        return answer[0], answer[1]

    def _ask(self, call: Callable[[], Coroutine[Any, Any, T]], key_id: str | None) -> T:
        what = "to wrap its keys"
        if key_id is not None:
            what = f"for the key {key_id}, which wraps its keys"
        try:
            return ask(call, _ANSWER_S, has_threads=self.has_threads)
        except KeyMissing as error:
            if key_id is None:
                raise KeyMissing(f"{self.url}: {error}") from error
            raise KeyMissing(
                f"{self.url} is encrypted, and needs the key {key_id}, which {self._name} does not have: "
                f"{error}. Make the key available to the provider"
            ) from error
        except DecryptionError as error:
            raise DecryptionError(
                f"{self.url}: {self._name} cannot unwrap its keys with {key_id}: {error}"
            ) from error
        except TimeoutError as error:
            raise Unavailable(
                f"{self.url}: {self._name} did not answer within {_ANSWER_S:.0f} seconds {what}"
            ) from error
        except PerdureError as error:
            raise type(error)(f"{self.url}: {self._name}, {what}: {error}") from error
        except Exception as error:  # any error of the provider
            raise Unavailable(f"{self.url}: {self._name} failed ({type(error).__name__}) {what}") from error


def load_or_create_keys(driver: Driver, provider: KeyProvider | None, url: str) -> StoredKeys | None:
    """Return the keys of a database. They are created when an empty database is first opened with an
    encryption key, unless it is open for reading only.

    Args:
        driver: The driver of the database.
        provider: The provider that wraps and unwraps the keys; ``None`` for an unencrypted database.
        url: The database's URL for errors.

    Raises:
        DecryptionError: The encryption key, or its absence, does not match the database.
        KeyMissing: The provider does not have the wrapping key.
        Unavailable: The provider failed.
    """
    (records,) = driver.perform(Fetch(RESERVED, (_RECORD,)))
    if provider is None:
        if records:
            raise KeyMissing(
                f"{url} is encrypted, and its keys are wrapped with {_parse(records[0], url)[0]}; {REMEDY}"
            )
        return None
    require_cryptography()
    wrapping = _Wrapping(provider, url, driver.capabilities.has_threads)
    if records:
        return StoredKeys(driver, wrapping, wrapping.open(records[0]))
    if any(driver.perform(FindThreads(None, limit=1, space=space)) for space in SPACES):
        raise DecryptionError(
            f"{url} has threads or items that are stored in the clear; open it without a key, or create an "
            "encrypted database and move them there"
        )
    first = wrapping.seal(DataKeys.create(int(time.time())), 1)
    if not driver.capabilities.is_read_only and not _store(driver, first, Expect.ABSENT):
        # Another process has created the keys meanwhile.
        return load_or_create_keys(driver, provider, url)
    return StoredKeys(driver, wrapping, first)


def is_encrypted(driver: Driver) -> bool:
    """Return True if a database has keys."""
    (records,) = driver.perform(Fetch(RESERVED, (_RECORD,)))
    return bool(records)


class StoredKeys(Keyring):
    """The keyring of an open database, which can read its record again and rotate its keys."""

    def __init__(self, driver: Driver, wrapping: _Wrapping, opened: _KeyRecord) -> None:
        super().__init__(opened.keys)
        self._driver = driver
        self._wrapping = wrapping
        self._opened = opened
        self._lock = threading.Lock()
        self._attempt: Future[Exception | None] | None = None
        self._refresh_at = time.monotonic() + _REFRESH_S
        self._unfound: dict[bytes, float] = {}
        self._is_closed = False

    @property
    def current(self) -> EncryptionKeys:
        """The public part of the keys in use."""
        return self._opened.view()

    def read_view(self) -> EncryptionKeys:
        """Read the keys again, blocking, and return their public part."""
        opened = self._wrapping.open(self._fetch())
        self._use_if_newer(opened)
        return opened.view()

    def rotate(self, *, data_key: bool, dry_run: bool) -> EncryptionKeys:
        """Wrap the keys again with the provider's current wrapping key, blocking, and return them.

        Args:
            data_key: Also create a data key, which encrypts from now on.
            dry_run: Call the provider, but store nothing.

        Raises:
            Conflict: Another process rotated them meanwhile; nothing was changed.
            KeyMissing: The provider does not have the key that wraps them now.
            TooLarge: There are too many data keys.
            PerdureError: The provider or the database failed; nothing was changed.
        """
        before = self._wrapping.open(self._fetch())
        self._use_if_newer(before)
        keys = before.keys
        if data_key:
            keys = keys.add_key(int(time.time()))
        if len(keys.secrets) > _DATA_KEYS_MOST:
            raise TooLarge(
                f"{self._wrapping.url} has {_DATA_KEYS_MOST} data keys, the maximum; copy it to an empty "
                "database, which begins with one"
            )
        after = self._wrapping.seal(keys, before.version + 1)
        if not dry_run:
            if not _store(self._driver, after, before.version):
                raise Conflict(
                    f"another process rotated the keys of {self._wrapping.url} at the same time; nothing was "
                    "changed. List the keys (perdure keys ls), and rotate again if necessary"
                )
            self._use_if_newer(after)
        return after.view()

    def count_values(self) -> Counter[str]:
        """Count the stored values by the data key that encrypts them, blocking; see ``count_by_data_key``."""
        return count_by_data_key(self._driver)

    def refresh_in_background(self) -> None:
        """Begin to read the keys again in the background if they were last read a minute ago or earlier.
        Never blocks."""
        if time.monotonic() >= self._refresh_at and self._wrapping.has_threads:
            self._join_or_start_attempt()

    def load_unknown(self, unknown: UnknownDataKey) -> None:
        """Read the keys again, blocking, to find a data key that this process does not know.

        Raises:
            KeyMissing: The key is not among them, or they cannot be read.
        """
        for attempt in self._start_attempts(unknown):
            attempt.result()

    async def aload_unknown(self, unknown: UnknownDataKey) -> None:
        """Read the keys again like ``load_unknown``, without blocking the event loop."""
        for attempt in self._start_attempts(unknown):
            await asyncio.wrap_future(attempt)

    def close(self) -> None:
        """Stop looking for newer keys."""
        self._is_closed = True

    def _start_attempts(self, unknown: UnknownDataKey) -> Iterator[Future[Exception | None]]:
        """Yield attempts for the caller to wait for, until the key is known: first the one in progress, if
        any, which may have read the record too early, then one that this call begins."""
        key_id = unknown.data_key
        failed: Exception | None = None
        if not self.knows(key_id) and time.monotonic() >= self._unfound.get(key_id, -inf):
            is_own = False
            while not (is_own or self.knows(key_id)):
                attempt, is_own = self._join_or_start_attempt()
                yield attempt
                failed = attempt.result()
            if not self.knows(key_id):
                with self._lock:
                    if len(self._unfound) >= _UNFOUND_MOST:
                        self._unfound.clear()
                    self._unfound[key_id] = time.monotonic() + _UNFOUND_S
        if not self.knows(key_id):
            why = ""
            if failed is not None:
                why = f"; its keys could not be read again: {failed}"
            raise KeyMissing(f"{unknown}{why}") from failed

    def _join_or_start_attempt(self) -> tuple[Future[Exception | None], bool]:
        """Return the current attempt to read the keys again, and whether this call has begun it."""
        with self._lock:
            if self._attempt is not None:
                return self._attempt, False
            attempt = self._attempt = Future[Exception | None]()
            # A cancelled waiter must not cancel the attempt for the others.
            attempt.set_running_or_notify_cancel()
            self._refresh_at = time.monotonic() + _REFRESH_S
        if self._wrapping.has_threads:
            threading.Thread(target=self._work, args=(attempt,), name="perdure-keys", daemon=True).start()
        else:
            self._work(attempt)
        return attempt, True

    def _work(self, attempt: Future[Exception | None]) -> None:
        failed: Exception | None = None
        try:
            record = self._fetch()
            if record.body != self._opened.body:
                self._use_if_newer(self._wrapping.open(record))
        except Exception as error:  # any error of the driver or the provider
            failed = error
            if not self._is_closed:
                _log.warning("the keys could not be read again; the known keys stay in use: %s", error)
        with self._lock:
            self._attempt = None
        attempt.set_result(failed)

    def _fetch(self) -> Record:
        (records,) = self._driver.perform(Fetch(RESERVED, (_RECORD,)))
        if not records:
            raise DecryptionError(f"{self._wrapping.url}: the record of its keys was removed")
        return records[0]

    def _use_if_newer(self, new: _KeyRecord) -> None:
        """Use keys that were read or stored, unless newer ones are already in use."""
        with self._lock:
            if new.version < self._opened.version:
                return
            new_ids = {each.id for each in new.keys.secrets}
            if new.keys.digest_key != self.digest_key or any(
                each.id not in new_ids for each in self._opened.keys.secrets
            ):
                raise DecryptionError(
                    f"{self._wrapping.url}: keys are missing from the record of its keys, which was replaced "
                    "by a foreign or an older one; the record was not used"
                )
            self.replace(new.keys)
            self._opened = new


def _store(driver: Driver, opened: _KeyRecord, expect: Expectation) -> bool:
    put = Put(SEAL, _RECORD.key, {}, opened.body, expect=expect, version=opened.version)
    return isinstance(driver.perform(Commit(RESERVED, (put,))), Committed)


def _parse(record: Record, url: str) -> tuple[str, bytes, bytes]:
    """Return the id of the wrapping key, the wrapped record key, and the data encrypted with the record
    key."""
    try:
        form, key_id, wrapped, sealed = ormsgpack.unpackb(record.body)
    except (ValueError, TypeError):
        form, key_id, wrapped, sealed = None, None, None, None
    if (
        form != _FORMAT
        or not (isinstance(key_id, str) and isinstance(wrapped, bytes) and isinstance(sealed, bytes))
        or _pack(key_id, wrapped, sealed) != record.body
    ):
        raise DecryptionError(
            f"{url}: the record of its keys is damaged, or was written by another release; it was not used"
        )
    return key_id, wrapped, sealed


def _pack(key_id: str, wrapped: bytes, sealed: bytes) -> bytes:
    return ormsgpack.packb([_FORMAT, key_id, wrapped, sealed])


def _pack_context(key_id: str, wrapped: bytes) -> bytes:
    return ormsgpack.packb([_FORMAT, key_id, wrapped])


def _to_datetime(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
