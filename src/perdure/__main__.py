"""Entry point of the script ``perdure`` and of ``python -m perdure``, which Ctrl-C may end at any moment."""

from __future__ import annotations

import sys


def main() -> None:
    """Run ``perdure``. Ctrl-C before a command has begun, or after its end, ends it as it does during the
    command: exit code 130."""
    try:
        from perdure.cli import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
