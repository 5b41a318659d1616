"""Cutting of a large payload behind lines that are chosen by their content.

An edit moves all bytes after it, so pieces of a fixed size would all differ from there on. Here a line's
content decides whether a piece ends behind it: a text that is edited at one place keeps its other pieces, and
a copy of the text inside another value has the same pieces. A value without lines is cut at a fixed size.
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
"""Payloads of more bytes than 2 to the power of this have larger pieces, which limits their number."""
_LINE = re.compile(rb"\n[^\n]{8,}")
"""A line that is examined. Short lines are not: each takes as much time as a long one."""


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
        end = _find_end(body, view, start, least, spread, most)
        pieces.append(body[start:end])
        start = end
    if start < size:
        pieces.append(body[start:])
    return pieces


def _find_end(body: bytes, view: memoryview, start: int, least: int, spread: int, most: int) -> int:
    """Return the end of the piece that begins at ``start``."""
    limit = min(start + most, len(body))
    # Only lines that begin after the minimum are examined: the rest of a line that the minimum falls into
    # would depend on where the piece begins.
    for line in _LINE.finditer(body, start + least, limit):
        end = line.end() + 1
        if end <= limit and crc32(view[line.start() : end]) * spread < (end - line.start()) << 32:
            return end
    if len(body) - start <= most:
        return len(body)
    end = body.rfind(b"\n", start + least, limit) + 1 or body.find(b"\n", limit, start + CHUNK_MAX) + 1
    return end or min(start + CHUNK_MAX, len(body))
