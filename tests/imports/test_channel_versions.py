"""Channel versions of the stock savers, as integers."""

from __future__ import annotations

from langgraph.checkpoint.sqlite import SqliteSaver

from perdure.imports.channel_versions import translate_versions


def test_a_stock_version_becomes_its_number_and_others_stay() -> None:
    saver = SqliteSaver.__new__(SqliteSaver)
    first = SqliteSaver.get_next_version(saver, None, None)
    second = SqliteSaver.get_next_version(saver, first, None)
    found = translate_versions(
        {
            "channel_versions": {"a": first, "b": second, "c": 7, "d": "mine"},
            "versions_seen": {"n": {"a": first}},
        }
    )
    assert found["channel_versions"] == {"a": 1, "b": 2, "c": 7, "d": "mine"}
    assert found["versions_seen"] == {"n": {"a": 1}}
