"""Where suites are run: their source and an environment of their own, outside the repository."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import venv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .catalogue import Suite

ROOT = Path(__file__).resolve().parents[2]
_EXTRAS = ("encryption", "postgres", "redis", "dynamodb", "d1", "search")


class NotRun(Exception):
    """A suite none of whose tests passes on the stock savers: nothing is compared."""


class Unobtainable(Exception):
    """A source or a package that cannot be had here; the message says how to get it."""


def cache_folder() -> Path:
    """Where sources, environments and outcomes of stock savers are kept between runs."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "perdure" / "suites"


def source_of(suite: Suite, work: Path, given: Path | None) -> Path:
    """The root of a suite's source: in a checkout of its repository, or a source distribution, fetched once.

    Raises:
        Unobtainable: There are no tests in the checkout, or the distribution cannot be downloaded.
    """
    if given is not None:
        for root in (given / suite.checkout, given):
            if (root / suite.tests).is_dir():
                return root
        raise Unobtainable(
            f"no {suite.checkout}/{suite.tests} in {given}; check out the repository of {suite.package} "
            f"at the tag of release {suite.version}"
        )
    root = work / "sources" / f"{suite.package}-{suite.version}"
    if not root.exists():
        root.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=root.parent) as folder:
            if suite.repository:
                clone(suite.repository, f"{suite.package}=={suite.version}", Path(folder) / "clone")
                unpacked = Path(folder) / "clone" / suite.checkout
            else:
                _download(suite, work, Path(folder))
                (archive,) = Path(folder).glob("*.tar.gz")
                with tarfile.open(archive) as packed:
                    packed.extractall(folder, filter="data")
                (unpacked,) = [path for path in Path(folder).iterdir() if path.is_dir()]
            unpacked.rename(root)
    if not (root / suite.tests).is_dir():
        raise Unobtainable(
            f"the source distribution of {suite.package} {suite.version} holds no {suite.tests}; check out "
            "its repository at that release and pass it: --source FOLDER"
        )
    return root


def clone(repository: str, revision: str, folder: Path) -> None:
    """Check out a tag or a commit of a repository into a folder that is not there.

    Raises:
        Unobtainable: It cannot be cloned.
    """
    folder.mkdir(parents=True)
    for command in (
        ["init", "--quiet"],
        ["fetch", "--quiet", "--depth", "1", repository, revision],
        ["checkout", "--quiet", "FETCH_HEAD"],
    ):
        done = subprocess.run(["git", "-C", str(folder), *command], capture_output=True, text=True)
        if done.returncode:
            raise Unobtainable(f"{repository} cannot be cloned at {revision}: {last_line(done.stderr)}")


def _download(suite: Suite, work: Path, folder: Path) -> None:
    pip = work / "pip" / "bin" / "python"
    if not pip.exists():
        venv.create(work / "pip", with_pip=True)
    command = [str(pip), "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:"]
    done = subprocess.run(
        [*command, "--dest", str(folder), f"{suite.package}=={suite.version}"], capture_output=True, text=True
    )
    if done.returncode:
        raise Unobtainable(
            f"pip cannot download the source of {suite.package} {suite.version}: {last_line(done.stderr)}; "
            "check out its repository at that release and pass it: --source FOLDER"
        )


def copy_tests(suite: Suite, source: Path, folder: Path) -> Path:
    """A copy of the suite's tests and settings to run in, without the package beside them."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    top = Path(suite.tests).parts[0]
    shutil.copytree(source / top, folder / top)
    if (source / "pyproject.toml").exists():
        shutil.copy(source / "pyproject.toml", folder)
    return folder


def environment_of(suites: Sequence[Suite], work: Path) -> Path:
    """The Python of an environment with what the suites need and what Perdure needs, made once.

    Raises:
        Unobtainable: A package cannot be installed.
    """
    return environment([*_own_requirements(), *(r for suite in suites for r in suite.requirements)], work)


def environment(
    requirements: Sequence[str], work: Path, *, with_own: bool = False, pinned: str | tuple[str, ...] = ""
) -> Path:
    """The Python of an environment with some packages, made once; ``with_own`` has Perdure and what its
    server needs in it, from this checkout. Packages whose names begin with ``pinned``, or one of several,
    have the version that Perdure's own tests run with.

    Raises:
        Unobtainable: A package cannot be installed.
    """
    own = [*_own_requirements("server"), f"-e {ROOT}"] if with_own else []
    requirements = sorted({*requirements, *own})
    held = [pin for pin in _pins() if pin.startswith(pinned)]
    named = hashlib.sha256("\n".join([sys.version, *requirements, *held]).encode()).hexdigest()[:12]
    folder = work / "environments" / named
    python = folder / "bin" / "python"
    if (folder / "complete").exists():
        return python
    shutil.rmtree(folder, ignore_errors=True)
    uv = find_uv()
    if uv is not None:
        _install([uv, "venv", "--quiet", "--python", sys.executable, str(folder)])
        command = [uv, "pip", "install", "--python", str(python)]
    else:
        venv.create(folder, with_pip=True)
        command = [str(python), "-m", "pip", "install"]
    pins = folder / "pins.txt"
    pins.write_text("\n".join(held), encoding="utf-8")
    listed = folder / "requirements.txt"
    listed.write_text("\n".join(requirements), encoding="utf-8")
    _install([*command, "--quiet", "--constraint", str(pins), "--requirement", str(listed)])
    (folder / "complete").touch()
    return python


def _own_requirements(*more: str) -> list[str]:
    """What Perdure needs on every backend, and for ``more`` of its extras."""
    project = _project()["project"]
    extras = (*_EXTRAS, *more)
    return [*project["dependencies"], *(r for e in extras for r in project["optional-dependencies"][e])]


def _pins() -> list[str]:
    """The versions that Perdure's own tests run with."""
    pins: list[str] = _project()["tool"]["uv"]["constraint-dependencies"]
    return pins


def _project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def _install(command: list[str]) -> None:
    # Not within the repository: uv would take the constraints of Perdure's own tests from there.
    done = subprocess.run(command, cwd=tempfile.gettempdir(), capture_output=True, text=True)
    if done.returncode:
        raise Unobtainable(f"the suites' packages cannot be installed: {last_line(done.stderr)}")


def find_uv() -> str | None:
    """The uv that is named by a variable, on the PATH, or in the repository; None without one."""
    own = ROOT / ".uv" / "bin" / "uv"
    return os.environ.get("UV") or shutil.which("uv") or (str(own) if own.exists() else None)


def last_line(text: str) -> str:
    """The last line with anything in it, which is where programs name what went wrong."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "no reason was given")
