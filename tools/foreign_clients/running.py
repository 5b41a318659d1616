"""Runs a suite against a server and reads what happened."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from xml.etree import ElementTree

from tests.server.browsing import FLAGS
from tools.foreign_suites.running import Outcome, own_variables, run_bounded

from .catalogue import Suite

_SUITE_S = 1200
_TEST_S = 40
_DATED = re.compile(r"-\d{4}-\d\d-\d\dT[\d-]+Z$")
_CHECKED = {"SUCCESS": "passed", "WARNING": "skipped", "SKIPPED": "skipped", "FAILURE": "failed"}
"""What becomes of a check; a warning is of what the protocol recommends, others are notes."""


class NotRun(Exception):
    """A suite that did not run."""


def run_pytest(suite: Suite, folder: Path, python: Path, url: str) -> dict[str, Outcome]:
    """Run a suite in Python with the SDK that is beside it."""
    written = folder / "outcomes.xml"
    options = ["-o", "addopts=", "-o", "asyncio_mode=auto", "--timeout", str(_TEST_S), "-m", suite.marked]
    options += [each.format(url=url) for each in suite.arguments]
    options += [f"--ignore={name}" for name in suite.without]
    command = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", *options]
    command += [f"--junitxml={written}", suite.tests]
    _run(command, folder, {"PYTHONPATH": str(folder), "LANGGRAPH_INTEGRATION_URL": url})
    return read_junit(_require_path(written))


def read_junit(path: Path) -> dict[str, Outcome]:
    """The outcomes in a file as pytest writes it."""
    found: dict[str, Outcome] = {}
    # It was written by the test run above.
    for case in ElementTree.parse(path).iter("testcase"):  # noqa: S314
        name = f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}"
        wrong = next((each for each in case if each.tag in ("failure", "error")), None)
        if wrong is not None:
            found[name] = Outcome("failed", _first(wrong.get("message") or ""))
        elif case.find("skipped") is not None:
            found[name] = Outcome("skipped")
        else:
            found[name] = Outcome("passed")
    return found


def run_vitest(suite: Suite, folder: Path, modules: Path, url: str) -> dict[str, Outcome]:
    """Run a suite in JavaScript with the packages that were installed for it."""
    (folder / "node_modules").symlink_to(modules)
    (folder / "package.json").write_text('{"private": true, "type": "module"}', encoding="utf-8")
    written = folder / "outcomes.json"
    command = ["node", str(modules / "vitest" / "vitest.mjs"), "run", suite.tests, "--reporter=json"]
    command += [f"--outputFile={written}", f"--testTimeout={_TEST_S}000", "--fileParallelism=false"]
    # With CI the suite would start a server of its own.
    variables = {"CI": "", "LANGGRAPH_INTEGRATION_URL": url}
    _run(command, folder, variables | (_browser() if suite.in_browser else {}))
    return read_vitest(_require_path(written))


def _browser() -> dict[str, str]:
    """The variables that name the browser of a suite's settings."""
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        raise NotRun("there is no Chromium; install it with your system's packages")
    return {"CHROMIUM": chromium, "CHROMIUM_FLAGS": " ".join(FLAGS)}


def read_vitest(path: Path) -> dict[str, Outcome]:
    """The outcomes in a file as vitest writes it."""
    found: dict[str, Outcome] = {}
    for file in json.loads(path.read_text(encoding="utf-8"))["testResults"]:
        if not file["assertionResults"]:
            raise NotRun(f"{Path(file['name']).name}: {_first(file.get('message', ''))}")
        for case in file["assertionResults"]:
            result = case["status"] if case["status"] in ("passed", "failed") else "skipped"
            found[case["fullName"]] = Outcome(result, _first("".join(case["failureMessages"][:1])))
    return found


def run_scenarios(suite: Suite, folder: Path, modules: Path, url: str) -> dict[str, Outcome]:
    """Run scenarios of a protocol, which ask the server themselves."""
    tool = modules / "@modelcontextprotocol" / "conformance" / "dist" / "index.js"
    written = folder / "outcomes"
    # Pending ones too.
    command = [
        "node",
        str(tool),
        "server",
        "--url",
        f"{url}{suite.tests}",
        "--suite",
        "all",
        "-o",
        str(written),
    ]
    _run(command, folder, {})
    return read_scenarios(_require_path(written))


def read_scenarios(folder: Path) -> dict[str, Outcome]:
    """The outcomes in a folder as the tool writes it: of each scenario its checks."""
    found: dict[str, Outcome] = {}
    for file in sorted(folder.glob("*/checks.json")):
        # Their folders are named by the time, too.
        scenario = _DATED.sub("", file.parent.name).removeprefix("server-")
        for check in json.loads(file.read_text(encoding="utf-8")):
            if (result := _CHECKED.get(check["status"])) is not None:
                outcome = Outcome(result, _first(check.get("errorMessage", "")))
                found[f"{scenario}::{check['id']}"] = outcome
    return found


def _run(command: list[str], folder: Path, variables: Mapping[str, str]) -> None:
    log = folder / "suite.log"
    if run_bounded(command, folder, {**own_variables(), **variables}, log, _SUITE_S) is None:
        raise NotRun(f"the suite was not over after {_SUITE_S} s; see {log}")


def _require_path(path: Path) -> Path:
    if not path.exists():
        raise NotRun(f"the suite wrote no outcomes; see {path.parent / 'suite.log'}")
    return path


def _first(text: str) -> str:
    return next((line.strip()[:200] for line in text.splitlines() if line.strip()), "")
