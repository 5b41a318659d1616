"""Cuts of large payloads: whole, bounded, and the same where the content is the same."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from perdure.model.values.chunks import CHUNK_MAX
from perdure.model.values.pieces import WHOLE_MAX, cut

PARTS = (b"\n", b"a line of text\n", b"x" * 5000, b"word " * 30 + b"\n", bytes(70_000), b"ab\n" * 9000)


def lines(seed: int, count: int) -> bytes:
    rng = random.Random(seed)
    return b"".join(b"%d %s\n" % (rng.randrange(10**9), b"w " * rng.randrange(1, 40)) for _ in range(count))


@given(st.lists(st.sampled_from(PARTS), max_size=60))
def test_pieces_are_the_payload(parts: list[bytes]) -> None:
    body = b"".join(parts)
    pieces = cut(body)
    assert b"".join(pieces) == body
    assert all(0 < len(piece) <= CHUNK_MAX for piece in pieces) or not body
    assert len(pieces) == 1 or len(body) > WHOLE_MAX
    assert len(pieces) <= 1 + len(body) / (8 * 1024)


@given(st.integers(0, 100), st.floats(0, 1), st.binary(max_size=200))
def test_an_edit_makes_few_new_pieces(seed: int, where: float, new: bytes) -> None:
    body = lines(seed, 8000)
    at = int(where * len(body))
    fresh = set(cut(body[:at] + new + body[at:])) - set(cut(body))
    assert len(fresh) <= 4
    assert sum(map(len, fresh)) <= 256 * 1024


def test_a_copy_inside_another_value_shares_its_pieces() -> None:
    body = lines(1, 10_000)
    other = set(cut(b"something else" + lines(2, 500) + body + b"the end"))
    shared = sum(len(piece) for piece in cut(body) if piece in other)
    assert shared > 0.9 * len(body)


def test_a_huge_payload_has_a_limited_number_of_pieces() -> None:
    body = lines(3, 5000) * 160
    assert len(body) > 30_000_000
    assert len(cut(body)) < 2048
    assert max(map(len, cut(body))) <= CHUNK_MAX
