"""Providers of the keys that wrap a database's data keys: the protocol, keys in a file or in memory, and
calls with a time limit.

A provider is called when a database is opened and when its keys are rotated, never for a value. No key is in
an error, a log or a ``repr``.
"""

from __future__ import annotations

import asyncio
import re
import stat
import threading
from collections.abc import Callable, Collection, Coroutine
from concurrent.futures import Future
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast, runtime_checkable

from perdure.errors import BadSetting, DecryptionError, KeyMissing, MissingExtra

T = TypeVar("T")

KEY_SIZE = 32
FORMS = "a file, aws-kms:KEY?region=…, or module:function"
REMEDY = "pass its key: encryption_key= in Python, or --keys or PERDURE_KEYS for a command"

_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
_IN_HEX = re.compile(rf"\s*[0-9a-fA-F]{{{2 * KEY_SIZE}}}\s*")
_ID_DIGITS = 16
_FILE_MOST = 64 << 10


@runtime_checkable
class KeyProvider(Protocol):
    """Wraps and unwraps keys with wrapping keys of its own, such as those of a key management service.

    A wrapped key is authenticated: one that was changed, or that was wrapped by another provider, is refused.
    Each call is made in an event loop of its own, and may take 20 seconds.
    """

    async def wrap(self, plain: bytes) -> tuple[str, bytes]:
        """Return the id of the wrapping key that is in use now, and the key wrapped with it."""
        ...

    async def unwrap(self, key_id: str, wrapped: bytes) -> bytes:
        """Return the key that was wrapped.

        Raises:
            KeyMissing: The provider does not have the wrapping key of this id, or may not use it any more.
        """
        ...


EncryptionKey = bytes | Collection[bytes] | KeyProvider
"""A wrapping key of 32 bytes, or several, the first of which wraps and all of which unwrap, or a provider."""


class LocalKeys:
    """Wrapping keys in memory, used as RFC 3394 says: the first wraps, all unwrap.

    Raises:
        ValueError: A key does not have 32 bytes.
    """

    def __init__(self, keys: Collection[bytes]) -> None:
        if not keys or any(not isinstance(cast(object, key), bytes) or len(key) != KEY_SIZE for key in keys):
            raise ValueError(
                f"an encryption key is {KEY_SIZE} random bytes, e.g. secrets.token_bytes({KEY_SIZE})"
            )
        self._keys = {sha256(b"perdure.key" + key).hexdigest()[:_ID_DIGITS]: key for key in keys}

    def __repr__(self) -> str:
        return f"LocalKeys({', '.join(self._keys)})"

    async def wrap(self, plain: bytes) -> tuple[str, bytes]:
        """Return the first key's id, and the key wrapped with it."""
        from cryptography.hazmat.primitives.keywrap import aes_key_wrap

        key_id = next(iter(self._keys))
        return key_id, aes_key_wrap(self._keys[key_id], plain)

    async def unwrap(self, key_id: str, wrapped: bytes) -> bytes:
        """Return the key that was wrapped."""
        from cryptography.hazmat.primitives.keywrap import InvalidUnwrap, aes_key_unwrap

        if key_id not in self._keys:
            raise KeyMissing(f"the keys given are {', '.join(self._keys)}")
        try:
            return aes_key_unwrap(self._keys[key_id], wrapped)
        except InvalidUnwrap as error:
            raise DecryptionError("what was wrapped was changed") from error


class FileKeys:
    """Wrapping keys in a file: 32 bytes or 64 hex digits, or a line of 64 hex digits for each key. The first
    wraps, all unwrap. The file is read at each use, so that a process finds a key that was added meanwhile; a
    pipe is read once.

    Args:
        path: The file.

    Raises:
        BadSetting: The file cannot be read.
        DecryptionError: It contains no key.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._pipe_keys: LocalKeys | None = None
        keys, is_rereadable = self._read()
        if not is_rereadable:
            self._pipe_keys = keys

    def __repr__(self) -> str:
        return f"FileKeys({str(self._path)!r})"

    async def wrap(self, plain: bytes) -> tuple[str, bytes]:
        """Return the id of the file's first key, and the key wrapped with it."""
        return await self._load_keys().wrap(plain)

    async def unwrap(self, key_id: str, wrapped: bytes) -> bytes:
        """Return the key that was wrapped."""
        return await self._load_keys().unwrap(key_id, wrapped)

    def _load_keys(self) -> LocalKeys:
        if self._pipe_keys is None:
            return self._read()[0]
        return self._pipe_keys

    def _read(self) -> tuple[LocalKeys, bool]:
        """Return the keys of the file, and whether it can be read again."""
        try:
            with self._path.open("rb") as file:
                is_rereadable = stat.S_ISREG(self._path.stat().st_mode)
                data = file.read(_FILE_MOST)
        except OSError as error:
            raise BadSetting(f"the key file {self._path} cannot be read: {error.strerror}") from error
        try:
            text = data.decode("ascii")
            decoded = bytes.fromhex(text)
            keys = (decoded,) if len(decoded) == KEY_SIZE else tuple(map(bytes.fromhex, text.split()))
        except (UnicodeDecodeError, ValueError):
            keys = (data,)
        if not keys or any(len(key) != KEY_SIZE for key in keys):
            raise DecryptionError(
                f"{self._path} holds no key: {KEY_SIZE} bytes, or {2 * KEY_SIZE} hex digits, are needed, or "
                "a line of these for each key"
            )
        return LocalKeys(keys), is_rereadable


def require_cryptography() -> None:
    """Raise ``MissingExtra`` if the library that encrypts is not installed."""
    try:
        import_module("cryptography.hazmat.primitives.ciphers.aead")
    except ImportError as error:
        raise MissingExtra('encryption needs an extra: pip install "perdure[encryption]"') from error


def provider_of(key: EncryptionKey | None) -> KeyProvider | None:
    """Return the provider that wraps and unwraps with an encryption key, ``None`` without a key.

    Raises:
        TypeError: It is neither a provider nor bytes.
        ValueError: A key does not have 32 bytes.
    """
    if isinstance(key, bytes):
        return LocalKeys((key,))
    if key is None or isinstance(key, KeyProvider):
        return key
    given = cast(object, key)
    if isinstance(given, str) or not isinstance(given, Collection):
        raise TypeError(
            f"encryption_key is of the type {type(given).__name__}; pass {KEY_SIZE} bytes, several of them, "
            "or a provider, such as perdure.keys.FileKeys(path)"
        )
    return LocalKeys(key)


def open_provider(text: str, base: Path | None = None) -> KeyProvider:
    """Return the provider that a setting names: a file, ``aws-kms:…``, or a function on Python's path that
    returns one.

    Args:
        text: The setting.
        base: The folder to which the path of a file is relative; the current one by default.

    Raises:
        BadSetting: There is no provider of this name.
        DecryptionError: The file contains no key.
        MissingExtra: A library that it needs is not installed.
    """
    if _IN_HEX.fullmatch(text):
        raise BadSetting(
            "the setting of the encryption keys has a key itself; write it to a file that only its owner may "
            "read, and name the file"
        )
    if text.startswith("aws-kms:"):
        from perdure.storage.aws_kms import AwsKms

        return AwsKms.of_text(text)
    if text.startswith("file:") or not _FUNCTION.fullmatch(text):
        return FileKeys((base or Path()) / text.removeprefix("file:"))
    module, _, name = text.partition(":")
    try:
        found: Any = import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise BadSetting(
            f"the provider of encryption keys {text} cannot be imported ({error}); see that the module is on "
            f"Python's path and has the function. Known are {FORMS}"
        ) from error
    try:
        if callable(found) and not isinstance(found, KeyProvider):
            found = found()
    except TypeError as error:
        raise BadSetting(f"{text} is not a function without arguments that returns a provider") from error
    if not isinstance(found, KeyProvider):
        raise BadSetting(f"{text} returns no provider of encryption keys, with wrap() and unwrap()")
    return found


def ask(call: Callable[[], Coroutine[Any, Any, T]], within_s: float, *, has_threads: bool) -> T:
    """Return a provider's answer, blocking.

    The provider is called in an OS thread of its own, with an event loop of its own, so that the call ends
    after ``within_s`` seconds even if the provider blocks. Where no OS thread can be started, the provider
    has to answer at once.

    Raises:
        TimeoutError: The provider did not answer within ``within_s`` seconds.
        Exception: Any error of the provider.
    """
    if not has_threads:
        return _answer_at_once(call())
    answer = Future[T]()

    def work() -> None:
        try:
            answer.set_result(asyncio.run(_await_within(call(), within_s)))
        except BaseException as error:  # it is raised where the answer is waited for
            answer.set_exception(error)

    threading.Thread(target=work, name="perdure-keys", daemon=True).start()
    return answer.result(within_s + 1.0)


async def _await_within(answer: Coroutine[Any, Any, T], seconds: float) -> T:
    return await asyncio.wait_for(answer, seconds)


def _answer_at_once(answer: Coroutine[Any, Any, T]) -> T:
    try:
        answer.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    answer.close()
    raise BadSetting(
        "a provider of encryption keys that has to wait cannot be used in a process without threads; pass "
        "the key itself"
    )
