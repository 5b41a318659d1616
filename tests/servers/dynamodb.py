"""A DynamoDB emulator, started once a process on a free port; each test gets a name for a table."""

from __future__ import annotations

import atexit
import importlib.util
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from urllib.request import urlopen

from tests.conftest import missing
from tests.servers.ports import free_port

REGION = "eu-central-1"
READY_SECONDS = 30
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "perdure-tests",
    "AWS_SECRET_ACCESS_KEY": "perdure-tests",
    "AWS_EC2_METADATA_DISABLED": "true",
}


def endpoint() -> str:
    """The emulator's address."""
    return started()[1]


@cache
def started() -> tuple[subprocess.Popen[bytes], str]:
    """The emulator's process and address."""
    if importlib.util.find_spec("ministack") is None:
        missing("ministack", "install it with: pip install ministack")
    port = free_port()
    folder = tempfile.TemporaryDirectory(prefix="perdure-dynamodb-")
    env = {
        **os.environ,
        "GATEWAY_PORT": str(port),
        "BIND_HOST": "127.0.0.1",
        "SERVICES": "dynamodb,kms",
        "STATE_DIR": folder.name,
        "LOG_LEVEL": "ERROR",
    }
    with (Path(folder.name) / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "ministack"],
            env=env,
            cwd=folder.name,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )

    def stop() -> None:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        folder.cleanup()

    atexit.register(stop)
    address = f"http://127.0.0.1:{port}"
    end = time.monotonic() + READY_SECONDS
    while True:
        try:
            with urlopen(f"{address}/_ministack/health", timeout=1):  # noqa: S310 - our own address
                return process, address
        except OSError as error:
            if process.poll() is not None or time.monotonic() > end:
                said = (Path(folder.name) / "log").read_text(errors="replace")[-2000:]
                raise RuntimeError(f"the DynamoDB emulator did not start: {said}") from error
            time.sleep(0.05)


@contextmanager
def credentials() -> Iterator[None]:
    """Credentials where the AWS tools look for them; what stood there is put back."""
    before = {name: os.environ.get(name) for name in CREDENTIALS}
    os.environ.update(CREDENTIALS)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def url_of(table: str, at: str | None = None) -> str:
    """The URL of a table on the emulator, or behind another address."""
    return f"dynamodb://{table}?region={REGION}&endpoint={at or endpoint()}"


@contextmanager
def empty() -> Iterator[str]:
    """The URL of a table that does not exist; it is removed afterwards."""
    import boto3

    table = f"perdure-{secrets.token_hex(6)}"
    with credentials():
        url = url_of(table)
        try:
            yield url
        finally:
            client = boto3.client("dynamodb", region_name=REGION, endpoint_url=endpoint())
            try:
                client.delete_table(TableName=table)
            except client.exceptions.ResourceNotFoundException:
                table = ""
            finally:
                client.close()
