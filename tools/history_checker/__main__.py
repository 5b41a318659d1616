"""Records a history of a deployment under faults, and checks it against the guarantees page.

    python -m tools.history_checker [--backend sqlite,redis] [--minutes 5] [--seed N] [--defect NAME]
    python -m tools.history_checker --check FILE

Exits 1 if a guarantee is broken. With ``--defect`` the product is run without one of its guards.
"""

from __future__ import annotations

import argparse
import secrets
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from .checking import check_calls, count_calls
from .databases import BACKENDS
from .defects import DEFECTS
from .recording import read_calls
from .running import Plan, record

_SHOWN = 40
_STOPPED = 143
_REST_S, _BROKEN_REST_S = 240.0, 30.0
"""How long a deployment may take to come to rest, and how long one with a defect is waited for."""


def main(arguments: list[str]) -> int:
    """Do what the arguments say; the exit status."""
    options = _parse_arguments(arguments)
    # The end of this process is that of all that it has started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(_STOPPED))
    if options.check is not None:
        return _report(options.check)
    failed = False
    for backend in options.backend.split(","):
        file = options.out / f"{backend}-{(options.defect or 'whole').replace(' ', '-')}-{options.seed}.jsonl"
        options.out.mkdir(parents=True, exist_ok=True)
        file.unlink(missing_ok=True)
        rest_s = _BROKEN_REST_S if options.defect else _REST_S
        plan = Plan(backend, options.minutes, options.seed, defect=options.defect, rest_s=rest_s)
        print(f"{plan}\n  into {file}", flush=True)
        with tempfile.TemporaryDirectory(prefix="perdure-history-") as folder:
            try:
                faults = record(plan, Path(folder), file)
            finally:
                _keep_logs(Path(folder), file.with_suffix(""))
        print(f"  faults: {faults}")
        failed |= bool(_report(file))
    return int(failed)


def _keep_logs(folder: Path, kept: Path) -> None:
    """Copy what the processes said beside the record."""
    kept.mkdir(exist_ok=True)
    for log in folder.glob("*.log"):
        shutil.copy(log, kept)


def _report(file: Path) -> int:
    with file.open() as lines:
        calls = read_calls(lines)
    for do, outcomes in count_calls(calls).items():
        print(f"  {do}: {', '.join(f'{count} {outcome}' for outcome, count in outcomes.items())}")
    violations = check_calls(calls)
    for violation in violations[:_SHOWN]:
        print(f"  {violation}")
    print(f"{file.name}: {len(calls)} calls, {len(violations)} violations", flush=True)
    return int(bool(violations))


def _parse_arguments(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser("tools.history_checker", description=__doc__)
    parser.add_argument("--backend", default=",".join(BACKENDS), help="backends, with commas between them")
    parser.add_argument("--minutes", type=float, default=5.0, help="length of the load on each backend")
    parser.add_argument("--seed", type=int, default=secrets.randbits(32))
    parser.add_argument("--defect", choices=sorted(DEFECTS), help="run the product without a guard")
    parser.add_argument("--out", type=Path, default=Path("histories"), help="folder for the records")
    parser.add_argument("--check", type=Path, help="check a record that there is")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
