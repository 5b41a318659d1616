"""Cuts of a large payload at lines that its own content chooses.

An edit moves what comes after it, so pieces of a fixed size would all differ from there on. Here a line's
content decides that a piece ends behind it: a text that is edited at one place has the same pieces elsewhere,
and so has a copy of it inside another value. A value without lines is cut at a fixed size.
"""

from __future__ import annotations

import re
from zlib import crc32

from perdure.model.values.chunks import CHUNK_MAX

WHOLE_MAX = 32 * 1024
"""Payloads up to this many bytes are not cut."""
_LEAST = 8 * 1024
_SPREAD = 8 * 1024
_MOST = 64 * 1024
_GROWTH = 23
"""Payloads of more than 2 to the power of this have pieces that grow with them: their number is limited."""
_LINE = re.compile(rb"\n[^\n]{8,}")
"""A line that is examined. Shorter ones are not, as each costs the same time."""


def cut(body: bytes) -> list[bytes]:
    """Return the pieces of a payload in order: a function of its bytes, at most ``CHUNK_MAX`` each."""
    size = len(body)
    if size <= WHOLE_MAX:
        return [body]
    scale = (size >> _GROWTH).bit_length()
    least, spread, most = (min(each << scale, CHUNK_MAX) for each in (_LEAST, _SPREAD, _MOST))
    view = memoryview(body)
    pieces: list[bytes] = []
    start = 0
    while size - start > least:
        end = _end(body, view, start, least, spread, most)
        pieces.append(body[start:end])
        start = end
    if start < size:
        pieces.append(body[start:])
    return pieces


def _end(body: bytes, view: memoryview, start: int, least: int, spread: int, most: int) -> int:
    """Return the end of the piece that begins at ``start``."""
    limit = min(start + most, len(body))
    # A line begins behind the end of another: what the minimum cuts would depend on where the piece begins.
    for line in _LINE.finditer(body, start + least, limit):
        end = line.end() + 1
        if end <= limit and crc32(view[line.start() : end]) * spread < (end - line.start()) << 32:
            return end
    if len(body) - start <= most:
        return len(body)
    end = body.rfind(b"\n", start + least, limit) + 1 or body.find(b"\n", limit, start + CHUNK_MAX) + 1
    return end or min(start + CHUNK_MAX, len(body))
