"""Entry point of ``python -m perdure``: the command line, where the script ``perdure`` is not on the path."""

from __future__ import annotations

from perdure.cli import main

if __name__ == "__main__":
    main()
