"""A database in a notebook: cells of a kernel, which runs the event loop.

Covers perdure.database.unopened.
"""

from __future__ import annotations

import asyncio
import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import perdure
from tests.conftest import missing

PAGE = Path(__file__).parents[2] / "docs" / "notebooks.md"
WITHIN_S = 120.0


class Kernel:
    """A kernel of Jupyter's in a process of its own."""

    def __init__(self, folder: Path) -> None:
        if importlib.util.find_spec("ipykernel") is None:
            missing("ipykernel", "pip install ipykernel")
        from jupyter_client.manager import KernelManager

        self._manager = KernelManager()
        self._manager.start_kernel(cwd=str(folder))
        self._client = self._manager.client()
        self._client.start_channels()
        self._client.wait_for_ready(timeout=WITHIN_S)

    def run(self, cell: str) -> str:
        """Run a cell, and return what it shows as its value."""
        shown: list[str] = []

        def note(message: dict[str, Any]) -> None:
            if message["msg_type"] == "execute_result":
                shown.append(message["content"]["data"]["text/plain"])

        reply = self._client.execute_interactive(cell, timeout=WITHIN_S, output_hook=note)
        assert reply["content"]["status"] == "ok", reply["content"]
        return "".join(shown)

    def close(self) -> None:
        if self._manager.has_kernel:
            self._client.stop_channels()
            self._manager.shutdown_kernel(now=True)


@pytest.fixture
def kernel(tmp_path: Path) -> Iterator[Kernel]:
    made = Kernel(tmp_path)
    yield made
    made.close()


def cells() -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)


def test_the_cells_of_the_page_run_and_go_on_in_another_kernel(kernel: Kernel, tmp_path: Path) -> None:
    opened, compiled, asked, looked, closed = cells()
    assert [kernel.run(cell) for cell in (opened, compiled)] == ["", ""]
    assert kernel.run(asked) == "'message 1'"
    assert kernel.run(asked) == "'message 3'"
    assert kernel.run(looked).split()[:4] == ["[(4,", "()),", "(3,", "('answer',)),"]
    # A blocking call within the loop of the kernel.
    assert (
        kernel.run("graph.invoke({'messages': [('user', 'hi')]}, ada)['messages'][-1].text") == "'message 5'"
    )
    # The kernel ends without a close.
    kernel.close()
    other = Kernel(tmp_path)
    try:
        for cell in (opened, opened, compiled):
            other.run(cell)
        assert other.run(asked) == "'message 7'"
        assert other.run(closed) == ""
        assert other.run(closed) == ""
    finally:
        other.close()


@pytest.mark.parametrize("url", ["memory://", "sqlite:///threads.db"])
def test_a_database_that_is_awaited_is_open_until_it_is_closed(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    async def main() -> None:
        db = await perdure.connect(url, migrate=True)
        assert await db.fsck("nobody") == []
        await db.close()
        await db.close()
        with pytest.raises(perdure.Unavailable, match=r"is closed; open it again with perdure\.connect"):
            await db.fsck("nobody")
        async with perdure.connect(url) as again:
            assert await again.fsck("nobody") == []

    asyncio.run(main())


def test_an_error_of_the_opening_is_raised_by_await() -> None:
    async def main() -> None:
        with pytest.raises(perdure.PerdureError, match="there is no directory"):
            await perdure.connect("sqlite:////nowhere/there/threads.db")

    asyncio.run(main())
