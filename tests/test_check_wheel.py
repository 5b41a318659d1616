"""The check of the wheel finds what does not belong into it, and the programs that it is to run."""

from __future__ import annotations

import zipfile
from pathlib import Path

from tools.check_wheel import ROOT, find_strangers, read_programs


def test_files_beside_the_package_are_found(tmp_path: Path) -> None:
    wheel = tmp_path / "perdure-1.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in (
            "perdure/__init__.py",
            "perdure-1.dist-info/METADATA",
            "tests/test_a.py",
            "perdured/__init__.py",
        ):
            archive.writestr(name, "")
    assert find_strangers(wheel) == ["tests/test_a.py", "perdured/__init__.py"]


def test_the_programs_of_a_page_are_whole(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "one\n\n```python\nprint(1)\n\nprint(2)\n```\n\n```sh\nls\n```\n\n```python\nprint(3)\n```\n"
    )
    assert read_programs(page) == ["print(1)\n\nprint(2)\n", "print(3)\n"]
    assert len(read_programs(ROOT / "README.md")) >= 2
