"""Encryption between the engine and a driver: bodies are sealed when written and opened when read.

Bodies hold everything that a user could have typed; clear columns hold ids, versions, channel names, and a
checkpoint's source, step and run id. A body is sealed with AES-256-GCM under a key derived for its thread
from a data key, which it names, and bound to its tenant, thread, kind, id and clear columns: if it is moved
or changed, it cannot be opened. Where the data keys come from is decided in ``stored_keys``.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar, cast

import ormsgpack

from perdure.errors import DecryptionError, KeyMissing, PerdureError
from perdure.model.ops import (
    Commit,
    Committed,
    Fetch,
    FindItems,
    FindNearest,
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
    THREADS,
    Partition,
    Record,
)
from perdure.model.store_items import describe_partition
from perdure.model.values.compression import SEALED, compress_body
from perdure.model.well_formed import require_names
from perdure.storage.key_providers import KEY_SIZE, REMEDY
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

_MAGIC = SEALED
_ID_SIZE = 4
_NONCE_SIZE = 12
_HEADER = len(_MAGIC) + _ID_SIZE + _NONCE_SIZE
OVERHEAD = _HEADER + 16
"""Bytes that sealing adds to a body."""


@dataclass(frozen=True, slots=True)
class SecretKey:
    """A data key, the id by which sealed bodies name it, and its time of creation, in seconds since 1970."""

    id: bytes
    created_at: int
    key: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class DataKeys:
    """The keys of a database: the data keys, the first of which encrypts and all of which decrypt, and the
    digest key for the names of chunks."""

    secrets: tuple[SecretKey, ...]
    digest_key: bytes = field(repr=False)

    @classmethod
    def create(cls, now: int) -> DataKeys:
        """Return the keys of a new database."""
        return cls((), secrets.token_bytes(KEY_SIZE)).add_key(now)

    def add_key(self, now: int) -> DataKeys:
        """Return these keys with a new data key before the others."""
        known = {each.id for each in self.secrets}
        key_id = secrets.token_bytes(_ID_SIZE)
        while key_id in known:
            key_id = secrets.token_bytes(_ID_SIZE)
        return replace(self, secrets=(SecretKey(key_id, now, secrets.token_bytes(KEY_SIZE)), *self.secrets))


def data_key_of(body: bytes) -> bytes | None:
    """Return the id of the data key that encrypts a stored body, None if it is in the clear."""
    if body.startswith(_MAGIC) and len(body) >= OVERHEAD:
        return body[len(_MAGIC) : len(_MAGIC) + _ID_SIZE]
    return None


class UnknownDataKey(KeyMissing):
    """A value is sealed with a key that a keyring does not have; ``data_key`` is its id."""

    def __init__(self, message: str, data_key: bytes) -> None:
        super().__init__(message)
        self.data_key = data_key


class Keyring:
    """The keys of a database in this process."""

    def __init__(self, keys: DataKeys) -> None:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF

        self.replace(keys)
        self.digest_key = keys.digest_key

        def derive(key_id: bytes, info: bytes) -> bytes:
            return HKDF(SHA256(), KEY_SIZE, salt=None, info=b"perdure." + info).derive(self._keys[key_id])

        @lru_cache(maxsize=4096)
        def cipher(key_id: bytes, partition: Partition) -> AESGCM:
            return AESGCM(derive(key_id, b"thread" + ormsgpack.packb(_encode_partition(partition))))

        self._cipher = cipher

    def replace(self, keys: DataKeys) -> None:
        """Seal with the first of these keys from now on, and open with all of them."""
        self._keys = {each.id: each.key for each in keys.secrets}
        self._first = keys.secrets[0].id

    def knows(self, data_key: bytes) -> bool:
        """Return True if the key of this id is here."""
        return data_key in self._keys

    def refresh_in_background(self) -> None:
        """Look for newer keys in the background, from time to time. A keyring that is not stored has none."""

    def load_unknown(self, unknown: UnknownDataKey) -> None:
        """Look for a key that is not known, blocking. A keyring that is not stored raises ``unknown``."""
        raise unknown

    async def aload_unknown(self, unknown: UnknownDataKey) -> None:
        """Look for a key like ``load_unknown``, without blocking the event loop."""
        raise unknown

    def close(self) -> None:
        """Stop looking for newer keys."""

    def seal(self, partition: Partition, put: Put) -> Put:
        nonce, key_id = secrets.token_bytes(_NONCE_SIZE), self._first
        body = self._cipher(key_id, partition).encrypt(
            nonce, compress_body(put), _pack_context(partition, put)
        )
        return put._replace(body=_MAGIC + key_id + nonce + body)

    def open(self, partition: Partition, record: Record) -> Record:
        from cryptography.exceptions import InvalidTag

        # A driver may return a record that it did not verify, with anything as its body.
        body = cast(object, record.body)
        name = _describe(partition, record)
        if not isinstance(body, bytes):
            raise DecryptionError(f"{name} is damaged: it holds no bytes; run `perdure fsck`")
        if not body.startswith(_MAGIC) or len(body) < OVERHEAD:
            raise DecryptionError(
                f"{name} is stored in the clear although an encryption key is set; it was not used"
            )
        key_id = body[len(_MAGIC) : len(_MAGIC) + _ID_SIZE]
        if key_id not in self._keys:
            raise UnknownDataKey(
                f"{name} is encrypted with the data key {key_id.hex()}, which is not among those that this "
                f"process knows ({', '.join(each.hex() for each in self._keys)})",
                key_id,
            )
        nonce = body[_HEADER - _NONCE_SIZE : _HEADER]
        try:
            clear = self._cipher(key_id, partition).decrypt(
                nonce, body[_HEADER:], _pack_context(partition, record)
            )
        except InvalidTag as error:
            raise DecryptionError(
                f"{name} was changed or moved since it was written; it was not used"
            ) from error
        return record._replace(body=clear)


class EncryptedDriver(WrappingDriver):
    """The layer between every open database and its driver. It refuses malformed names, and seals bodies with
    a keyring. Without one it stores bodies in the clear, and refuses to read a sealed one."""

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
        answer = self._inner.perform(self._seal_request(effect))
        try:
            return self._open_answer(effect, answer)
        except UnknownDataKey as unknown:
            if self._keyring is None:
                raise
            # Another process began to seal with a new data key.
            self._keyring.load_unknown(unknown)
        return self._open_answer(effect, answer)

    async def aperform(self, effect: Effect[R]) -> R:
        answer = await self._inner.aperform(self._seal_request(effect))
        try:
            return self._open_answer(effect, answer)
        except UnknownDataKey as unknown:
            if self._keyring is None:
                raise
            await self._keyring.aload_unknown(unknown)
        return self._open_answer(effect, answer)

    def close(self) -> None:
        """Close the driver; repeatable."""
        if self._keyring is not None:
            self._keyring.close()
        super().close()

    async def acommit_and_fetch(
        self, commit: Commit, fetch: Fetch
    ) -> tuple[Committed | Refused, Answers | None]:
        """See ``port.acommit_and_fetch``."""
        sealed = cast(Commit, self._seal_request(commit))
        outcome, answers = await acommit_and_fetch(self._inner, sealed, fetch)
        try:
            if answers is not None:
                answers = self._open_answer(fetch, answers)
        except PerdureError:
            # Without an answer the caller fetches by itself, and gets the error then.
            answers = None
        return outcome, answers

    def _seal_request(self, effect: Effect[R]) -> Effect[R]:
        require_names(effect)
        if self._keyring is None:
            return effect
        if isinstance(effect, Commit):
            self._keyring.refresh_in_background()
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

    def _open_answer(self, effect: Effect[R], answer: R) -> R:
        if isinstance(effect, FindItems | FindNearest):
            return cast(R, tuple(map(self._open_hit, cast("tuple[IndexHit, ...]", answer))))
        if not isinstance(effect, Fetch):
            return answer
        records = cast("tuple[tuple[Record, ...], ...]", answer)
        if self._keyring is None:
            for group, item in zip(records, effect.items, strict=True):
                if item.kind in (CHECKPOINT, ITEM, DOCUMENT):
                    _refuse_sealed(effect.partition, group)
            return answer
        return cast(
            R,
            tuple(
                tuple(self._open(effect.partition, record) for record in group)
                if item.kind.body and getattr(item, "bodies", True)
                else group
                for group, item in zip(records, effect.items, strict=True)
            ),
        )

    def _open_hit(self, hit: IndexHit) -> IndexHit:
        if hit.record is None:
            return hit
        if self._keyring is None:
            _refuse_sealed(hit.partition, (hit.record,))
        return replace(hit, record=self._open(hit.partition, hit.record))

    def _open(self, partition: Partition, record: Record) -> Record:
        if self._keyring is None:
            return record
        return self._keyring.open(partition, record)


def _refuse_sealed(partition: Partition, records: Collection[Record]) -> None:
    for record in records:
        body = cast(object, record.body)
        if isinstance(body, bytes) and body.startswith(_MAGIC):
            raise KeyMissing(f"{_describe(partition, record)} is encrypted; {REMEDY}")


def _describe(partition: Partition, record: Record) -> str:
    return f"{describe_partition(partition)}: {record.kind.name} {_format_key(record)}"


def _pack_context(partition: Partition, item: Put | Record) -> bytes:
    fields: list[Any] = [item.fields[c.name] for c in item.kind.fields if c.name != item.kind.grows]
    return ormsgpack.packb(
        [_encode_partition(partition), item.kind.name, _encode_texts(item.key), _encode_texts(fields)]
    )


def _encode_partition(partition: Partition) -> list[Any]:
    return _encode_texts(partition[:2] if partition.space == THREADS else partition)


def _encode_texts(values: Collection[Any]) -> list[Any]:
    """Return values in a form that can be packed: text that is not well-formed Unicode as its bytes."""
    return [v.encode("utf-8", "surrogatepass") if isinstance(v, str) else v for v in values]


def _format_key(record: Record) -> str:
    return "/".join(part.hex() if isinstance(part, bytes) else str(part) for part in record.key)
