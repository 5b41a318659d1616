"""Encryption between the engine and a driver: bodies are sealed when written and opened when read.

Bodies hold everything that a user could have typed; clear columns hold ids, versions, channel names, and a
checkpoint's source, step and run id. A body is sealed with AES-256-GCM under a key derived for its thread,
and bound to its tenant, thread, kind, id and clear columns: if it is moved or changed, it cannot be opened.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection
from dataclasses import replace
from functools import lru_cache
from hashlib import sha256
from typing import TYPE_CHECKING, Any, TypeVar, cast

import ormsgpack

from perdure.errors import DecryptionError, KeyMissing, MissingExtra, PerdureError
from perdure.model.ops import (
    Commit,
    Committed,
    Expect,
    Fetch,
    FindItems,
    FindNearest,
    FindThreads,
    Get,
    IndexHit,
    Op,
    Put,
    Refused,
    Stage,
)
from perdure.model.program import Effect
from perdure.model.records import (
    CHECKPOINT,
    DOCUMENT,
    ITEM,
    RESERVED,
    SEAL,
    SERVER,
    SESSIONS,
    SPACES,
    STORE,
    THREADS,
    Partition,
    Record,
)
from perdure.model.store_items import labels_of
from perdure.model.values.compression import SEALED, compress_body
from perdure.model.well_formed import require_names
from perdure.storage.port import (
    Answers,
    CommitLimits,
    Driver,
    WrappingDriver,
    acommit_and_fetch,
)

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

R = TypeVar("R")

KEY_SIZE = 32
_MAGIC = SEALED
_WORD = "key"
_ID_SIZE = 4
_NONCE_SIZE = 12
_HEADER = len(_MAGIC) + _ID_SIZE + _NONCE_SIZE
OVERHEAD = _HEADER + 16
"""Bytes that sealing adds to a body."""


class Keyring:
    """Encryption keys: the first seals, all open. Rotate by putting a new key first."""

    def __init__(self, keys: Collection[bytes]) -> None:
        try:
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM
            from cryptography.hazmat.primitives.hashes import SHA256
            from cryptography.hazmat.primitives.kdf.hkdf import HKDF
        except ImportError as error:
            raise MissingExtra('encryption needs an extra: pip install "perdure[encryption]"') from error
        if not keys or any(len(key) != KEY_SIZE for key in keys):
            raise ValueError(
                f"an encryption key is {KEY_SIZE} random bytes, e.g. secrets.token_bytes({KEY_SIZE})"
            )
        self._keys = {sha256(b"perdure.key" + key).digest()[:_ID_SIZE]: key for key in keys}
        self._first = next(iter(self._keys))

        def derive(key_id: bytes, info: bytes) -> bytes:
            return HKDF(SHA256(), KEY_SIZE, salt=None, info=b"perdure." + info).derive(self._keys[key_id])

        @lru_cache(maxsize=4096)
        def cipher(key_id: bytes, partition: Partition) -> AESGCM:
            return AESGCM(derive(key_id, b"thread" + ormsgpack.packb(_place(partition))))

        self._cipher = cipher
        self.digest_keys: tuple[bytes, ...] = tuple(derive(key_id, b"digest") for key_id in self._keys)

    @classmethod
    def of(cls, keys: bytes | Collection[bytes]) -> Keyring:
        """Return a keyring of one key or several."""
        return cls((keys,) if isinstance(keys, bytes) else tuple(keys))

    def seal(self, partition: Partition, put: Put) -> Put:
        nonce = secrets.token_bytes(_NONCE_SIZE)
        bound = _pack_context(partition, put)
        body = self._cipher(self._first, partition).encrypt(nonce, compress_body(put), bound)
        return put._replace(body=_MAGIC + self._first + nonce + body)

    def is_sealed_by_first(self, body: bytes) -> bool:
        """Return True if a body was sealed with the first key."""
        return body[len(_MAGIC) :].startswith(self._first)

    def open(self, partition: Partition, record: Record) -> Record:
        from cryptography.exceptions import InvalidTag

        # A record that is not verified may hold anything.
        body = cast(object, record.body)
        where = _where(partition, record)
        if not isinstance(body, bytes):
            raise DecryptionError(f"{where} is damaged: it holds no bytes; run `perdure fsck`")
        if not body.startswith(_MAGIC) or len(body) < OVERHEAD:
            raise DecryptionError(
                f"{where} is stored in the clear although an encryption key is set; it was not used"
            )
        key_id = body[len(_MAGIC) : len(_MAGIC) + _ID_SIZE]
        if key_id not in self._keys:
            raise KeyMissing(
                f"{where} is sealed with key {key_id.hex()}, which is not among the keys given "
                f"({', '.join(k.hex() for k in self._keys)}); add the old key after the new one"
            )
        nonce = body[_HEADER - _NONCE_SIZE : _HEADER]
        try:
            clear = self._cipher(key_id, partition).decrypt(
                nonce, body[_HEADER:], _pack_context(partition, record)
            )
        except InvalidTag as error:
            raise DecryptionError(
                f"{where} was changed or moved since it was written; it was not used"
            ) from error
        return record._replace(body=clear)


def admit(driver: Driver, keyring: Keyring | None, url: str) -> None:
    """Raise ``DecryptionError`` unless the given keys, or their absence, match the database. An empty
    database takes the key with which it is first opened; one with threads in the clear takes none. A database
    that is open for reading only is not changed.

    Args:
        driver: The driver of the database.
        keyring: The keys, ``None`` for none.
        url: The database's URL for errors.
    """
    (found,) = driver.perform(Fetch(RESERVED, (Get(SEAL, (_WORD,)),)))
    if keyring is None:
        if found:
            raise DecryptionError(f"{url} is encrypted; pass the key: perdure.connect(url, encryption_key=…)")
        return
    if found:
        try:
            keyring.open(RESERVED, found[0])
        except DecryptionError as error:
            raise DecryptionError(f"{url} is encrypted with another key than the ones given") from error
        if keyring.is_sealed_by_first(found[0].body):
            return
    elif any(driver.perform(FindThreads(None, limit=1, space=space)) for space in SPACES):
        raise DecryptionError(
            f"{url} has threads or items that are stored in the clear; open it without a key, or start an "
            "encrypted database and move them there"
        )
    if driver.capabilities.is_read_only:
        return
    version = found[0].version if found else 0
    put = Put(SEAL, (_WORD,), {}, _WORD.encode(), expect=version or Expect.ABSENT, version=version + 1)
    outcome = driver.perform(Commit(RESERVED, (keyring.seal(RESERVED, put),)))
    if not isinstance(outcome, Committed):
        # Another process was first; its key has to be one of the given ones.
        admit(driver, keyring, url)


class EncryptedDriver(WrappingDriver):
    """A driver behind a keyring. Without a keyring bodies are passed on, and a sealed one is refused."""

    def __init__(self, inner: Driver, keyring: Keyring | None) -> None:
        super().__init__(inner)
        self._keyring = keyring
        self.capabilities = inner.capabilities
        if keyring is not None:
            # A sealed body is bound to its record's fields, so none of them may change when it is stored; and
            # sealed vectors cannot be compared where they are stored.
            self.capabilities = replace(
                inner.capabilities, keeps_fields=False, vectors="as the database is encrypted"
            )

    @property
    def limits(self) -> CommitLimits:
        inner = self._inner.limits
        if self._keyring is None:
            return inner
        # Commits are planned before sealing, which adds the overhead to each body.
        return CommitLimits(inner.ops, max(1, inner.bytes - OVERHEAD * inner.ops))

    def perform(self, effect: Effect[R]) -> R:
        return self._up(effect, self._inner.perform(self._down(effect)))

    async def aperform(self, effect: Effect[R]) -> R:
        return self._up(effect, await self._inner.aperform(self._down(effect)))

    async def acommit_and_fetch(
        self, commit: Commit, fetch: Fetch
    ) -> tuple[Committed | Refused, Answers | None]:
        """See ``port.acommit_and_fetch``."""
        sealed = cast(Commit, self._down(commit))
        outcome, answers = await acommit_and_fetch(self._inner, sealed, fetch)
        try:
            return outcome, None if answers is None else self._up(fetch, answers)
        except PerdureError:
            # A caller that reads it by itself gets the error.
            return outcome, None

    def _down(self, effect: Effect[R]) -> Effect[R]:
        require_names(effect)
        if self._keyring is None:
            return effect
        if isinstance(effect, Commit):
            ops = tuple(self._seal(effect.partition, op) for op in effect.ops)
            return cast("Effect[R]", replace(effect, ops=ops))
        if isinstance(effect, FindItems):
            # Sealed bodies cannot be searched: the caller has to read and compare each.
            return cast("Effect[R]", replace(effect, holding=(), bounds=()))
        if isinstance(effect, Stage):
            puts = tuple(self._keyring.seal(effect.partition, put) for put in effect.puts)
            return cast("Effect[R]", replace(effect, puts=puts))
        return cast("Effect[R]", cast("Effect[Any]", effect))

    def _seal(self, partition: Partition, op: Op) -> Op:
        if self._keyring is not None and isinstance(op, Put) and op.kind.body:
            return self._keyring.seal(partition, op)
        return op

    def _up(self, effect: Effect[R], answer: R) -> R:
        if isinstance(effect, FindItems | FindNearest):
            return cast(R, tuple(map(self._open_hit, cast("tuple[IndexHit, ...]", answer))))
        if not isinstance(effect, Fetch):
            return answer
        records = cast("tuple[tuple[Record, ...], ...]", answer)
        if self._keyring is None:
            for found, item in zip(records, effect.items, strict=True):
                if item.kind in (CHECKPOINT, ITEM, DOCUMENT):
                    _refuse_sealed(effect.partition, found)
            return answer
        return cast(
            R,
            tuple(
                tuple(self._open(effect.partition, record) for record in found)
                if item.kind.body and getattr(item, "bodies", True)
                else found
                for found, item in zip(records, effect.items, strict=True)
            ),
        )

    def _open_hit(self, found: IndexHit) -> IndexHit:
        if found.record is None:
            return found
        if self._keyring is None:
            _refuse_sealed(found.partition, (found.record,))
        return replace(found, record=self._open(found.partition, found.record))

    def _open(self, partition: Partition, record: Record) -> Record:
        if self._keyring is None:
            return record
        return self._keyring.open(partition, record)


def _refuse_sealed(partition: Partition, records: Collection[Record]) -> None:
    for record in records:
        body = cast(object, record.body)
        if isinstance(body, bytes) and body.startswith(_MAGIC):
            raise KeyMissing(
                f"{_where(partition, record)} is encrypted; "
                "pass the key: perdure.connect(url, encryption_key=…)"
            )


def _where(partition: Partition, record: Record) -> str:
    if partition.space == STORE:
        return f"store namespace {labels_of(partition.thread)!r}: {record.kind.name} {_name(record)}"
    if partition.space == SERVER:
        return f"what the server keeps as {partition.thread!r}: {record.kind.name} {_name(record)}"
    if partition.space == SESSIONS:
        return f"history of session {partition.thread!r}: {record.kind.name} {_name(record)}"
    return f"thread {partition.thread!r}: {record.kind.name} {_name(record)}"


def _pack_context(partition: Partition, item: Put | Record) -> bytes:
    fields: list[Any] = [item.fields[c.name] for c in item.kind.fields if c.name != item.kind.grows]
    return ormsgpack.packb([_place(partition), item.kind.name, _text(item.key), _text(fields)])


def _place(partition: Partition) -> list[Any]:
    return _text(partition[:2] if partition.space == THREADS else partition)


def _text(values: Collection[Any]) -> list[Any]:
    """Return values in a form that can be packed: text that is not well-formed Unicode as its bytes."""
    return [v.encode("utf-8", "surrogatepass") if isinstance(v, str) else v for v in values]


def _name(record: Record) -> str:
    return "/".join(part.hex() if isinstance(part, bytes) else str(part) for part in record.key)
