"""The settings that Aegra's tests read: where the server is, and what it sends to a client that waits."""

from __future__ import annotations

import os
from types import SimpleNamespace

settings = SimpleNamespace(
    app=SimpleNamespace(
        SERVER_URL=os.environ["LANGGRAPH_INTEGRATION_URL"],
        # As often as Aegra does.
        KEEPALIVE_INTERVAL_SECS=5.0,
    ),
    # Seconds in a schedule are Aegra's own.
    cron=SimpleNamespace(CRON_ALLOW_SECONDS_SCHEDULE=False, CRON_POLL_INTERVAL_SECONDS=1),
    observability=SimpleNamespace(ENABLE_PROMETHEUS_METRICS=False),
)
