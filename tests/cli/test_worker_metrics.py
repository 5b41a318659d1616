"""What a worker process counts, as Prometheus scrapes it."""

from __future__ import annotations

import re
import signal
import socket
import threading
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from prometheus_client import REGISTRY, Gauge

from perdure.model.runs.messages import DONE
from perdure.runtime.metrics import serve_metrics
from tests.cli.processes import WITHIN, Process, Workers


def page_of(workers: Workers, process: Process) -> str:
    (url,) = re.findall(r"metrics are at (http://\S+/metrics)\n", workers.log(process))
    return str(url)


def scraped(url: str) -> str:
    with urllib.request.urlopen(url, timeout=WITHIN) as answer:  # noqa: S310 - on this machine
        assert answer.headers["Content-Type"].startswith("text/plain; version=")
        return str(answer.read().decode())


@pytest.mark.slow
@pytest.mark.parametrize("is_variable", [True, False])
def test_it_is_scraped_until_its_last_run_has_ended(workers: Workers, is_variable: bool) -> None:
    if is_variable:
        process = workers.ready(
            "app:graph", "--poll", "0.1", PERDURE_METRICS_PORT="0", PERDURE_DB=workers.url
        )
    else:
        process = workers.start("app:graph", "--metrics-port", "0")
    url = page_of(workers, process)
    assert url.startswith("http://127.0.0.1:")
    assert workers.wait(workers.accept(("a", "hi")))[0].state == DONE
    assert 'perdure_run_attempts_total{graph="agent"} 1.0\n' in scraped(url)
    slow = workers.accept(("b", "slow"))
    workers.until(lambda: "answer slow" in workers.notes())
    workers.ask_to_stop(process)
    during = scraped(url)
    assert 'perdure_runs_open{graph="agent"} 1.0\n' in during
    assert 'perdure_run_attempts_total{graph="agent"} 2.0\n' in during
    for secret in ("slow", "hi", str(workers.folder)):
        assert f'"{secret}"' not in during
    workers.free()
    assert workers.ended(process) == 0
    assert workers.wait(slow)[0].state == DONE
    with pytest.raises(urllib.error.URLError):
        scraped(url)


def test_a_page_of_metrics_is_there_and_then_is_not() -> None:
    registered = Gauge("perdure_test_gauge", "Of this test alone.")
    others = set(threading.enumerate())
    try:
        with serve_metrics("127.0.0.1", 0) as url:
            assert "perdure_test_gauge 0.0\n" in scraped(url)
        assert not [each for each in threading.enumerate() if each not in others and "serve" in each.name]
        with pytest.raises(urllib.error.URLError):
            scraped(url)
        with serve_metrics("127.0.0.1", urlsplit(url).port or 0) as again:
            assert again == url
    finally:
        REGISTRY.unregister(registered)


def test_where_processes_share_a_folder_it_tells_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    with serve_metrics("127.0.0.1", 0) as url:
        assert "python_info" not in scraped(url), "it tells what stands in the folder, and that is empty"


def test_it_listens_nowhere_unless_it_is_told(workers: Workers) -> None:
    process = workers.start("app:graph")
    assert "metrics" not in workers.log(process)
    process.send_signal(signal.SIGTERM)
    assert workers.ended(process) == 0


def test_it_listens_where_it_is_told(workers: Workers) -> None:
    process = workers.start("app:graph", "--metrics-port", "0", "--metrics-host", "127.0.0.2")
    url = page_of(workers, process)
    assert url.startswith("http://127.0.0.2:")
    assert "perdure_worker_errors_total 0.0\n" in scraped(url)


def test_two_workers_cannot_have_one_port(workers: Workers) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = workers.refused("app:graph", "--db", workers.url, "--metrics-port", str(port))
    assert said == (
        f"port {port} of 127.0.0.1 is taken, metrics cannot be served there; stop what listens there, or "
        "choose another metrics port"
    )


def test_an_address_of_somebody_else_is_refused(workers: Workers) -> None:
    words = ("app:graph", "--db", workers.url, "--metrics-port", "0", "--metrics-host")
    assert workers.refused(*words, "192.0.2.1") == (
        "metrics cannot be served at 192.0.2.1, port 0: Cannot assign requested address"
    )


def test_without_the_extra_it_says_what_to_install(workers: Workers) -> None:
    said = workers.refused(
        "app:graph", "--db", workers.url, "--metrics-port", "0", without=("prometheus_client",)
    )
    assert said == 'metrics need an extra: pip install "perdure[metrics]"'
