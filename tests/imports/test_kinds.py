"""The places of sources: the same at each import, and different for different data."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure.imports.kinds import SourceKind, digest_place

POSTGRES = "postgresql://ada:first@db/app"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (POSTGRES, "postgresql://ada:second@db/app"),
        (POSTGRES, f"{POSTGRES}?sslmode=require&password=second"),
        ("old.db", "./folder/../old.db"),
        ("old.db", "sqlite:///old.db"),
    ],
)
def test_a_source_is_known_again(one: str, other: str) -> None:
    kind = SourceKind.PLAIN
    assert digest_place(kind, one) == digest_place(kind, other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (POSTGRES, "postgresql://ada:first@db/other"),
        (POSTGRES, f"{POSTGRES}?options=-csearch_path%3Dsecond"),
        ("redis://db:6379/0", "redis://db:6379/0?prefix=second"),
        ("dynamodb://table?region=eu-west-1", "dynamodb://table?region=us-east-1"),
        ("http://localhost:2024", "http://localhost:2025"),
        ("old.db", "second.db"),
    ],
)
def test_another_source_is_not_taken_for_it(one: str, other: str) -> None:
    kind = SourceKind.PLAIN
    assert digest_place(kind, one) != digest_place(kind, other)
    assert digest_place(kind, one) != digest_place(SourceKind.HISTORY, one)


def test_a_relative_path_is_known_from_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = digest_place(SourceKind.PLAIN, "old.db")
    assert found == digest_place(SourceKind.PLAIN, str(tmp_path / "old.db"))
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path / "folder")
    assert digest_place(SourceKind.PLAIN, "old.db") != found
