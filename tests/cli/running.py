"""Runs ``perdure`` in the process of a test."""

from __future__ import annotations

import sys

import pytest

from perdure.cli import main


def run_cli(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], *words: str
) -> tuple[int, str, str]:
    """Run ``perdure`` with these words; return its exit status, and what it printed and reported."""
    monkeypatch.setattr(sys, "argv", ["perdure", *words])
    capfd.readouterr()
    code = 0
    try:
        main()
    except SystemExit as done:
        code = int(done.code or 0)
    return (code, *capfd.readouterr())
