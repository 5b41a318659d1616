"""Providers of wrapping keys: bytes, files, functions by name, and calls that must not take for ever."""

from __future__ import annotations

import asyncio
import os
import pickle
import threading
from pathlib import Path
from typing import Any

import pytest

from perdure.errors import BadSetting, DecryptionError, KeyMissing
from perdure.keys import FileKeys, KeyProvider
from perdure.storage.key_providers import LocalKeys, ask, open_provider, provider_of

pytest.importorskip("cryptography", reason='pip install "perdure[encryption]"')

OLD, NEW, PLAIN = bytes(range(32)), bytes(range(32, 64)), b"p" * 32


def test_the_first_key_wraps_and_all_unwrap() -> None:
    by_old = asyncio.run(LocalKeys([OLD]).wrap(PLAIN))
    both = LocalKeys([NEW, OLD])
    by_new = asyncio.run(both.wrap(PLAIN))
    assert by_old[0] != by_new[0]
    assert [asyncio.run(both.unwrap(*each)) for each in (by_old, by_new)] == [PLAIN, PLAIN]
    with pytest.raises(KeyMissing, match=by_old[0]):
        asyncio.run(LocalKeys([OLD]).unwrap(*by_new))
    with pytest.raises(DecryptionError, match="changed"):
        asyncio.run(LocalKeys([OLD]).unwrap(by_old[0], by_new[1]))
    assert OLD.hex() not in repr(both)


@pytest.mark.parametrize(
    "text", [OLD, OLD.hex().encode(), b"\n".join([NEW.hex().encode(), OLD.hex().encode()])]
)
def test_a_file_has_bytes_or_lines_of_hex_digits(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "keys"
    path.write_bytes(text)
    wrapped = asyncio.run(LocalKeys([OLD]).wrap(PLAIN))
    keys = FileKeys(path)
    assert asyncio.run(keys.unwrap(*wrapped)) == PLAIN
    assert repr(keys) == f"FileKeys({str(path)!r})"
    again = pickle.loads(pickle.dumps(keys))  # noqa: S301 - our own
    assert asyncio.run(again.unwrap(*wrapped)) == PLAIN


def test_a_file_that_is_changed_or_removed_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(OLD.hex())
    keys = FileKeys(str(path))
    wrapped = asyncio.run(LocalKeys([NEW]).wrap(PLAIN))
    with pytest.raises(KeyMissing):
        asyncio.run(keys.unwrap(*wrapped))
    path.write_text(NEW.hex())
    assert asyncio.run(keys.unwrap(*wrapped)) == PLAIN
    path.unlink()
    with pytest.raises(BadSetting, match="cannot be read"):
        asyncio.run(keys.unwrap(*wrapped))


def test_a_pipe_is_read_once(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_text, args=(OLD.hex(),))
    writer.start()
    keys = FileKeys(path)
    writer.join()
    for _ in range(2):
        assert asyncio.run(keys.unwrap(*asyncio.run(keys.wrap(PLAIN)))) == PLAIN


@pytest.mark.parametrize("given", ["text", 7, object()], ids=["text", "number", "object"])
def test_what_is_no_key_is_refused(given: Any) -> None:
    with pytest.raises(TypeError, match=r"pass 32 bytes.*FileKeys"):
        provider_of(given)


def test_a_relative_path_starts_at_the_folder_of_its_setting(tmp_path: Path) -> None:
    (tmp_path / "keys").write_bytes(OLD)
    for name in ("keys", "file:keys"):
        assert isinstance(open_provider(name, tmp_path), KeyProvider)
    with pytest.raises(BadSetting, match="cannot be read"):
        open_provider("keys", tmp_path / "nowhere")


def test_without_threads_a_provider_has_to_answer_at_once() -> None:
    async def waits() -> bytes:
        await asyncio.sleep(0)
        return PLAIN

    key_id, wrapped = ask(lambda: LocalKeys([OLD]).wrap(PLAIN), 1.0, has_threads=False)
    assert ask(lambda: LocalKeys([OLD]).unwrap(key_id, wrapped), 1.0, has_threads=False) == PLAIN
    with pytest.raises(BadSetting, match="without threads"):
        ask(waits, 1.0, has_threads=False)
    assert ask(waits, 1.0, has_threads=True) == PLAIN
