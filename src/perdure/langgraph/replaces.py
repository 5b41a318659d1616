"""A mark for fields of a graph's state that replace their value on purpose."""

from __future__ import annotations

from typing import Final, final


@final
class ReplacesType:
    """Type of ``Replaces``; there is one instance.

    An annotation has this instance and not a class or function, since LangGraph takes the last callable of an
    annotation for a reducer.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return "perdure.Replaces"


Replaces: Final = ReplacesType()
"""Declares that each update of a field replaces its value: ``docs: Annotated[list[str], Replaces]``.

LangGraph ignores it, as a field without a reducer replaces anyway. ``perdure audit`` reports lists and dicts
that declare neither a reducer nor this.
"""
