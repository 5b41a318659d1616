"""The log of a process: complete, and unable to steer a terminal."""

from __future__ import annotations

import logging

import pytest

from perdure.runtime import log_output


def without_handlers(monkeypatch: pytest.MonkeyPatch) -> logging.Logger:
    """Return the root logger without handlers, until the end of the test."""
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setattr(logging.getLogger("perdure"), "level", logging.NOTSET)
    return root


def test_texts_of_exceptions_cannot_steer_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    without_handlers(monkeypatch)
    log_output.configure_logging("info")
    try:
        raise ValueError("naïve \x1b[2J\x07\r\u202etext\n\tnext line 茶")
    except ValueError:
        logging.getLogger("perdure.any").exception("failed: %s", "\x9b1A")
    shown = capsys.readouterr().err
    assert "failed: \\x9b1A\n" in shown
    assert "ValueError: naïve \\x1b[2J\\x07\\r\\u202etext\n\tnext line 茶" in shown
    assert not set(shown) & set("\x1b\x07\r\u202e\x9b")


def test_a_log_that_is_set_up_already_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    root, own = without_handlers(monkeypatch), logging.NullHandler()
    root.addHandler(own)
    log_output.configure_logging("debug")
    assert root.handlers == [own]
    assert logging.getLogger("perdure").level == logging.DEBUG
