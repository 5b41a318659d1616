"""Check of the package as users get it: the wheel, installed alone, runs the programs of README.md.

    python -m tools.check_wheel

Nothing of this tree is on the path of what is installed, and no extra is installed with it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from tools.foreign_suites.places import find_uv

ROOT = Path(__file__).resolve().parent.parent
_PROGRAM = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_TIMEOUT_S = 300


def read_programs(page: Path) -> list[str]:
    """Return the Python programs of a page, in their order."""
    return _PROGRAM.findall(page.read_text(encoding="utf-8"))


def find_strangers(wheel: Path) -> list[str]:
    """Return the files of a wheel that are neither the package's nor its metadata."""
    with zipfile.ZipFile(wheel) as archive:
        return [name for name in archive.namelist() if not re.match(r"perdure(/|-[^/]+\.dist-info/)", name)]


def main() -> int:
    """Return 0 if the wheel is sound; print what it did, and what failed."""
    uv = find_uv()
    if uv is None:
        print("no uv is on the PATH or in .uv; make installs one: run make package")
        return 1
    environment = {
        name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "VIRTUAL_ENV"}
    }
    with tempfile.TemporaryDirectory(prefix="perdure-wheel-") as folder:
        place = Path(folder)

        def run(*command: str | Path) -> None:
            subprocess.run(command, cwd=place, env=environment, check=True, timeout=_TIMEOUT_S)

        run(uv, "build", "--quiet", "--wheel", "--out-dir", place / "dist", ROOT)
        (wheel,) = (place / "dist").glob("*.whl")
        if strangers := find_strangers(wheel):
            print(
                f"{wheel.name} also has {', '.join(strangers[:5])}; name what it may have in pyproject.toml"
            )
            return 1
        run(uv, "venv", "--quiet", "--python", sys.executable, "installed")
        python = place / "installed" / "bin" / "python"
        run(uv, "pip", "install", "--quiet", "--python", python, wheel)
        run(python.with_name("perdure"), "--version")
        for number, program in enumerate(read_programs(ROOT / "README.md"), start=1):
            path = place / f"program_{number}.py"
            path.write_text(program, encoding="utf-8")
            try:
                run(python, path)
            except subprocess.CalledProcessError:
                print(f"program {number} of README.md fails with {wheel.name}; its output is above")
                return 1
    print(f"{wheel.name}: installed alone, it runs the programs of README.md")
    return 0


if __name__ == "__main__":
    sys.exit(main())
