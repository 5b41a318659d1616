"""Entry point of the script ``perdure`` and of ``python -m perdure``, which Ctrl-C may end at any moment."""

from __future__ import annotations

import sys


def main() -> None:
    """Run ``perdure``. Ctrl-C ends the process with exit code 130 at any moment, also before the command has
    begun and after its end."""
    try:
        from perdure.cli import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
