"""Entry point of ``python -m perdure.demo``: the demo without Perdure's command line."""

from __future__ import annotations

import argparse
import sys

from perdure.demo.serve import main_demo

DEFAULT_PORT = 8765
PURPOSE = "Chat with an agent whose threads outlive the process."
MODELS = "provider:name, or local; default: OpenAI with OPENAI_API_KEY, else local"


def main() -> int:
    """Parse the arguments, run the demo and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m perdure.demo", description=PURPOSE)
    parser.add_argument("--db", default="sqlite:///perdure-demo.db", help="database URL (%(default)s)")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (%(default)s)")
    parser.add_argument("--port", type=int, default=DEFAULT_PORT, help="port; another one if it is taken")
    parser.add_argument("--model", help=MODELS)
    parser.add_argument("--once", metavar="TEXT", help="print the answer to one message and exit")
    parser.add_argument("--thread", help="the conversation that --once continues")
    parser.add_argument("--no-browser", action="store_true", help="do not open the page in a browser")
    given = parser.parse_args()
    return main_demo(
        db_url=given.db,
        host=given.host,
        port=given.port,
        model=given.model,
        once=given.once,
        thread=given.thread,
        open_browser=not given.no_browser,
    )


if __name__ == "__main__":
    sys.exit(main())
