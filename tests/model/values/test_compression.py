"""Stored bodies are compressed, and come back byte for byte whatever they look like."""

from __future__ import annotations

import string
import zlib
from hashlib import sha256
from random import Random

import zstandard
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from perdure.model.values.chunks import Digester
from perdure.model.values.compression import (
    DICTIONARY,
    LEAST,
    LONG_MARK,
    MARK,
    MOST,
    compress,
    decompress,
)

DIGEST = Digester()
PLAIN = st.one_of(
    st.binary(max_size=600),
    st.text(max_size=600).map(str.encode),
    st.binary(max_size=40).map(lambda some: MARK + some * 20),
    st.binary(max_size=40).map(lambda some: LONG_MARK + some * 20),
    st.binary(max_size=40).map(lambda some: some * 900),
)


@given(PLAIN)
def test_a_chunk_comes_back_whatever_its_bytes_are(body: bytes) -> None:
    name = DIGEST(body)
    assert DIGEST.read_stored(name, compress(body)) == body
    # A release without compression stored it as it is, even if it looks compressed.
    assert DIGEST.read_stored(name, body) == body
    twice = compress(body)
    assert DIGEST.read_stored(DIGEST(twice), compress(twice)) == twice
    assert DIGEST.read_stored(DIGEST(twice), twice) == twice


@given(st.binary(min_size=1, max_size=40).map(lambda some: some * LEAST), st.data())
def test_a_changed_chunk_is_not_taken_for_another(body: bytes, data: st.DataObject) -> None:
    stored, name = compress(body), DIGEST(body)
    assert len(stored) < len(body)
    at = data.draw(st.integers(0, len(stored) - 1))
    other = stored[:at] + bytes([stored[at] ^ data.draw(st.integers(1, 255))]) + stored[at + 1 :]
    for changed in (other, stored[:at], stored + b"\0"):
        found = DIGEST.read_stored(name, changed)
        assert found is None or found == body


def test_what_gains_nothing_is_stored_as_it_is() -> None:
    short, random = b"a" * (LEAST - 1), Random(1).randbytes(10_000)
    assert compress(short) is short
    assert compress(random) is random
    assert decompress(short) is None
    assert decompress(MARK + random) is None


def test_a_body_expands_to_a_limit() -> None:
    whole = bytes(MOST)
    assert decompress(compress(whole)) == whole
    assert compress(whole + b"\0") == whole + b"\0"
    deflate = zlib.compressobj(9, zlib.DEFLATED, -15, 8, zlib.Z_DEFAULT_STRATEGY, DICTIONARY)
    assert decompress(MARK + deflate.compress(bytes(100 * MOST)) + deflate.flush()) is None


def test_a_long_body_expands_to_a_limit() -> None:
    frame = zstandard.ZstdCompressor(level=19).compress(bytes(MOST + 1))
    assert decompress(LONG_MARK + frame) is None
    unsized = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(9000))
    for odd in (unsized, frame[:20], frame + b"x", b"", b"\x28\xb5\x2f\xfd"):
        assert decompress(LONG_MARK + odd) is None


def test_large_bodies_are_compressed_too() -> None:
    for size in (LEAST, 3 << 10, (3 << 10) + 1, 16 << 10, (16 << 10) + 1, 256 << 10):
        body = (string.printable * (size // 100 + 1))[:size].encode()
        assert len(compress(body)) < size
        assert decompress(compress(body)) == body


def test_the_frame_of_a_message_takes_few_bytes() -> None:
    text = "".join(Random(1).choices(string.ascii_letters, k=40))
    _, body = JsonPlusSerializer().dumps_typed(HumanMessage(text, id="0" * 36))
    assert len(body) > 200
    assert len(compress(body)) < 80


def test_the_dictionary_is_frozen() -> None:
    """What is stored can be read only with the dictionary that it was written with."""
    assert sha256(DICTIONARY).hexdigest()[:16] == "6127fcb1c50112af"
    assert decompress(bytes.fromhex("c101c3e6e2412a0400")) == b"\xb1additional_kwargs\x80" * 9
