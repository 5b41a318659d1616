"""Search for words in a conversation: all of them in its title or in one message, in either case."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from perdure.langgraph.reading.delta_values import plain_of
from perdure.model.arguments import read_mapping
from perdure.model.values.joined_values import pack_tree
from perdure.model.values.tree import EncodedList

_EXCERPT = 90
_BEFORE = 30


class Excerpt(NamedTuple):
    """A part of a message, and its speaker: the role, with the name if it has one; empty if not known."""

    text: str = ""
    speaker: str = ""


def words_of(text: str) -> list[str]:
    """Return the words of a search, which are separated by white space."""
    return text.casefold().split()


def has_words(text: str, wanted: Sequence[str]) -> bool:
    """Return True if a text contains all words."""
    folded = text.casefold()
    return all(word in folded for word in wanted)


def excerpt(messages: Any, wanted: Sequence[str]) -> Excerpt | None:
    """Return the part of the latest matching message around the first word, ``None`` if none matches.

    Args:
        messages: the messages of a state as JSON data; anything else has none.
        wanted: the words.
    """
    if not isinstance(messages, list):
        return None
    for message in reversed(messages):
        for text in _list_texts(message):
            if has_words(text, wanted):
                line = " ".join(text.split())
                word = _find_place(line, wanted[0])
                begin = max(0, word - _BEFORE)
                if begin and " " in line[begin:word]:
                    begin = line.index(" ", begin) + 1
                start, end = "…" if begin else "", "…" if begin + _EXCERPT < len(line) else ""
                return Excerpt(f"{start}{line[begin : begin + _EXCERPT]}{end}", _find_speaker(message))
    return None


def find_excerpt(messages: EncodedList, wanted: Sequence[str]) -> Excerpt | None:
    """Return the result of ``excerpt`` for stored messages: only those whose bytes contain all words are
    decoded."""
    for item in reversed(messages.items):
        if has_words(pack_tree(item).decode(errors="ignore"), wanted):
            found = excerpt([plain_of(item)], wanted)
            if found is not None:
                return found
    return None


def _fields_of(message: Any) -> Mapping[str, Any]:
    # In its plain form a message is a mapping of its type and, as ``value``, its fields.
    fields = read_mapping(message)
    if "content" in fields:
        return fields
    return read_mapping(fields.get("value"))


def _find_speaker(message: Any) -> str:
    fields = _fields_of(message)
    role, name = fields.get("type", fields.get("role")), fields.get("name")
    return " ".join(each for each in (role, name) if isinstance(each, str) and each)


def _list_texts(message: Any) -> Iterator[str]:
    content = _fields_of(message).get("content")
    if isinstance(content, str):
        yield content
    for part in content if isinstance(content, list) else ():
        text = read_mapping(part).get("text", part)
        if isinstance(text, str):
            yield text


def _find_place(line: str, word: str) -> int:
    """Return where a word begins in a line; folding can make a character longer, as it does "ß"."""
    left = line.casefold().find(word)
    for place, character in enumerate(line):
        left -= len(character.casefold())
        if left < 0:
            return place
    return 0
