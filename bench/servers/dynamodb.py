"""An emulator of DynamoDB: it keeps the rules of the service, not its speed and not its bill."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from bench.capacity import item_bytes
from bench.servers.machine import Missing, Server, free_port, run_server

_REGION = "us-east-1"
_BILLED_OVERHEAD = 100
"""Bytes an item that the service adds to every item when it bills storage."""


class DynamoDB:
    """A table for each candidate; every name that starts with the table's is taken for its own."""

    variants: tuple[str, ...] = ()

    def __init__(self, port: int, version: str) -> None:
        self.port = port
        self.settings = f"the emulator ministack {version}, tables on demand"

    def vary(self, variant: str) -> None:
        raise ValueError(f"this server has one setting, not {variant!r}")

    def empty(self, name: str) -> str:
        return f"dynamodb://{name}?region={_REGION}&endpoint=http://127.0.0.1:{self.port}"

    def measure_stored(self, url: str) -> int:
        """What the service would bill: names and values of all items, and its overhead an item."""
        import boto3

        client: Any = boto3.client(
            "dynamodb", region_name=_REGION, endpoint_url=f"http://127.0.0.1:{self.port}"
        )
        try:
            wanted = urlsplit(url).netloc
            stored = 0
            for table in client.list_tables()["TableNames"]:
                if table.startswith(wanted):
                    for page in client.get_paginator("scan").paginate(TableName=table):
                        stored += sum(item_bytes(item) + _BILLED_OVERHEAD for item in page["Items"])
        finally:
            client.close()
        return stored

    def compact(self, url: str) -> None:
        """What is removed takes no space from then on."""

    def measure_written(self) -> None:
        """The emulator keeps no account of it."""


@contextmanager
def dynamodb() -> Iterator[Server]:
    for module in ("ministack", "boto3"):
        if find_spec(module) is None:
            raise Missing(f"{module} is not installed; pip install ministack boto3")
    # The emulator asks for no real ones, but a client sends nothing without any.
    os.environ.setdefault("AWS_ACCESS_KEY_ID", "bench")
    os.environ.setdefault("AWS_SECRET_ACCESS_KEY", "bench")
    with tempfile.TemporaryDirectory(prefix="perdure-bench-dynamodb-") as scratch:
        port = free_port()
        environment = {**os.environ, "GATEWAY_PORT": str(port), "SERVICES": "dynamodb", "HOME": scratch}
        command = [sys.executable, "-m", "ministack"]
        with run_server(command, Path(scratch), port, env=environment):
            yield DynamoDB(port, metadata.version("ministack"))
