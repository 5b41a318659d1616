"""Parameters in the texts of statements, and which statements may stand in a commit."""

from __future__ import annotations

import pytest

from perdure.model.statement_texts import check_statement, find_names, refusal, replace_names


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("INSERT INTO t VALUES (:a, :b, :a)", ["a", "b"]),
        ("SELECT ':no', \":no\", :yes -- :no\n, :too /* :no */", ["yes", "too"]),
        ("SELECT :a::text, 'it''s :no', x[1:2]", ["a"]),
        (r"SELECT E'\':no', :a", ["a"]),
        ("DO $$ :no $$", []),
        ("DO $x$ $$ :no $x$", []),
        ("SELECT :größe", ["größe"]),
        ("SELECT 'open :no", ["no"]),
    ],
)
def test_parameters_are_found_outside_of_texts_names_and_comments(text: str, names: list[str]) -> None:
    assert find_names(text) == names
    assert find_names(replace_names(text, lambda name: "?")) == []


def test_each_occurrence_of_a_name_is_replaced() -> None:
    assert replace_names("VALUES (:a, ':a', :b::int, :a)", {"a": "$1", "b": "$2"}.__getitem__) == (
        "VALUES ($1, ':a', $2::int, $1)"
    )


@pytest.mark.parametrize("text", ["", "COMMIT", " -- x\n rollback", "/* x */ SET a = 1", "BEGIN", "PRAGMA x"])
def test_a_statement_that_is_not_for_a_transaction_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="Perdure begins and ends the transaction"):
        check_statement(text, {})


@pytest.mark.parametrize(
    "text", ["-- x\n insert into t values (1)", "(SELECT 1)", "/* x */WITH a AS (SELECT 1) x"]
)
def test_comments_and_brackets_may_come_first(text: str) -> None:
    assert check_statement(text, {}) == []


def test_parameters_are_those_of_the_text() -> None:
    with pytest.raises(ValueError, match=r"\['a'\] have no value"):
        check_statement("SELECT :a", {})
    with pytest.raises(ValueError, match=r"\['b'\] do not occur"):
        check_statement("SELECT :a", {"a": 1, "b": 2})


def test_a_refusal_is_short_and_has_the_class_only() -> None:
    shown = refusal("SELECT\n  1 " + "x" * 500, ValueError("a secret"))
    assert "ValueError" in shown
    assert "secret" not in shown
    assert "SELECT 1 x" in shown
    assert len(shown) < 450
