"""A runtime's metrics for Prometheus.

Labels are graphs, channels and states, never tenants, threads, runs or messages: the number of series is
bounded by the program, not by its users.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

from perdure.errors import BadSetting, MissingExtra
from perdure.model.runs.messages import DEAD, FAILED, UNKNOWN

try:
    from prometheus_client import (
        REGISTRY,
        CollectorRegistry,
        Counter,
        Gauge,
        Histogram,
        start_http_server,
    )
    from prometheus_client.exposition import choose_encoder
    from prometheus_client.multiprocess import MultiProcessCollector
except ImportError as error:
    raise MissingExtra('metrics need an extra: pip install "perdure[metrics]"') from error

_NAMES_MAX = 100
_OTHER = "other"

_AGES_S = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)
_DURATIONS_S = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 900, 3600)
_CALLS_S = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_DELIVERIES_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_SIZES = tuple(1024 * kib for kib in (1, 4, 16, 50, 100, 256, 1024, 4096, 16384))


class Metrics:
    """Observer that keeps a runtime's metrics in ``registry``, by default the process's own.

    Several runtimes of a process share one instance.

    Raises:
        ValueError: The registry has an instance already.
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        to = REGISTRY if registry is None else registry
        self._graphs: set[str] = set()
        self._channels: set[str] = set()
        self._state_channels: set[str] = set()
        self._reported_names: set[str] = set()
        counter, histogram = partial(Counter, registry=to), partial(Histogram, registry=to)
        # Over several processes a gauge is shown as the sum, or the greatest, of those that are alive.
        summed = partial(Gauge, registry=to, multiprocess_mode="livesum")
        greatest = partial(Gauge, registry=to, multiprocess_mode="livemax")
        self._messages = counter(
            "perdure_messages",
            "Messages by outcome: accepted, duplicate, or refused because the queue was full.",
            ("graph", "channel", "outcome"),
        )
        self._age = histogram(
            "perdure_queue_age_seconds",
            "Age of the first message of a run when a worker claimed it, debouncing included.",
            ("graph",),
            buckets=_AGES_S,
        )
        self._duration = histogram(
            "perdure_run_duration_seconds",
            "Time from the first claim of a run to its end, with the pauses between its attempts.",
            ("graph", "state"),
            buckets=_DURATIONS_S,
        )
        self._open = summed("perdure_runs_open", "Runs under way in this process.", ("graph",))
        self._sizes = histogram(
            "perdure_checkpoint_bytes",
            "Serialised size of a channel's whole value in a checkpoint that a run stored.",
            ("graph", "channel"),
            buckets=_SIZES,
        )
        self._by_event = {
            event: counter(name, text, ("graph",))
            for event, name, text in (
                ("run.claimed", "perdure_run_attempts", "Attempts at runs."),
                ("run.attempt_failed", "perdure_run_attempts_failed", "Attempts that raised an error."),
                ("run.handed_over", "perdure_runs_handed_over", "Runs that a stopping worker released."),
                ("run.lost", "perdure_runs_lost", "Runs that this process held and another took over."),
                ("run.write_refused", "perdure_stale_writes_refused", "Writes refused to a lost run."),
                ("run.not_renewed", "perdure_lease_renewals_failed", "Renewals of a lease that failed."),
                (
                    "conversation.repaired",
                    "perdure_conversations_repaired",
                    "Inputs of runs that repaired the thread's messages.",
                ),
                (
                    "conversation.compacted",
                    "perdure_conversations_compacted",
                    "Inputs of runs that left out messages of the thread.",
                ),
                ("conversation.summary_made", "perdure_summaries", "Summaries of conversations made."),
                (
                    "conversation.summary_failed",
                    "perdure_summaries_failed",
                    "Summaries of conversations that failed; the conversation was left as it was.",
                ),
                (
                    "conversation.summary_shortened",
                    "perdure_summaries_shortened",
                    "Summaries that were too long, and were shortened by one more request or by a rule.",
                ),
                (
                    "memory.recalled",
                    "perdure_memory_recalls",
                    "New threads that began with a memory of their user.",
                ),
                (
                    "memory.recall_failed",
                    "perdure_memory_recalls_failed",
                    "Searches in memories that failed or took too long.",
                ),
                (
                    "memory.user_refused",
                    "perdure_memory_users_refused",
                    "Runs without a memory, because their user's id cannot be stored.",
                ),
                (
                    "state.large",
                    "perdure_states_large",
                    "Runs whose state was too large as a whole, though no single channel was.",
                ),
                ("memory.kept", "perdure_memory_turns", "Extracted turns whose facts are stored."),
            )
        }
        by_hop = ("graph", "hop", "model")
        self._calls = histogram(
            "perdure_model_call_duration_seconds",
            "Time of calls of models, by the node in which they were made.",
            by_hop,
            buckets=_CALLS_S,
        )
        self._call_errors = counter(
            "perdure_model_call_errors", "Calls of models that raised an error.", by_hop
        )
        self._tokens = counter("perdure_model_tokens", "Tokens of calls of models.", (*by_hop, "direction"))
        self._cost = counter("perdure_model_cost", "Cost of calls of models with a known price.", by_hop)
        self._deliveries = counter(
            "perdure_deliveries",
            "Attempts to deliver a reply, by the state in which they left it.",
            ("channel", "state"),
        )
        self._delivering = histogram(
            "perdure_delivery_duration_seconds",
            "Time that a channel's sender took for a reply, with any outcome.",
            ("channel",),
            buckets=_DELIVERIES_S,
        )
        self._counted = {
            event: counter(name, text)
            for event, name, text in (
                (
                    "reply.lost",
                    "perdure_outboxes_lost",
                    "Outboxes that this process held and another took over.",
                ),
                (
                    "thread.older",
                    "perdure_threads_older",
                    "Times that a thread's stored state was older than this process had seen: the database "
                    "was restored to an earlier state.",
                ),
                ("sweep.failed", "perdure_sweep_errors", "Sweeps that an error ended in this process."),
                (
                    "worker.unavailable",
                    "perdure_database_unavailable",
                    "Times that the database did not answer a worker.",
                ),
                ("worker.error", "perdure_worker_errors", "Errors that no worker expects."),
            )
        }
        self._unserved = greatest(
            "perdure_unserved_threads",
            "Threads that wait for a graph, a channel or a service that this process does not serve.",
            ("what", "name"),
        )
        self._failing = greatest(
            "perdure_failing_threads",
            "Threads on which this worker fails each time, by the queue and the type of the error.",
            ("lane", "error"),
        )
        self._swept = {
            name: counter(f"perdure_swept_{what}", text)
            for name, what, text in (
                ("threads", "threads", "Threads looked at by sweeps of this process."),
                ("expired", "expired_threads", "Expired threads that sweeps removed."),
                ("checkpoints", "checkpoints", "Checkpoints that sweeps removed."),
                ("bytes", "bytes", "Bytes of stored values and records that sweeps removed."),
                ("failed", "threads_failed", "Threads that could not be swept."),
                ("unfinished", "unfinished", "Killed imports, copies and first writes that sweeps removed."),
            )
        }
        self._sweep_ended = Gauge(
            "perdure_sweep_last_success_timestamp_seconds",
            "Time at which the last sweep of the database ended, by any process, in seconds since 1970.",
            registry=to,
            multiprocess_mode="max",
        )
        self._sweep_every = greatest("perdure_sweep_interval_seconds", "Time between two sweeps.")
        self._data_keys = greatest(
            "perdure_data_keys", "Data keys of the encrypted database, of which the newest encrypts."
        )
        self._keys_wrapped = greatest(
            "perdure_keys_wrapped_timestamp_seconds",
            "Time at which the database's keys were wrapped last, in seconds since 1970.",
        )
        self._password_failures = greatest(
            "perdure_password_failures",
            "Calls for the database's password that failed since the last one that did not.",
        )
        self._password_ends = greatest(
            "perdure_password_ends_timestamp_seconds",
            "Time at which the database's password at hand ends, in seconds since 1970; 0 if it is unknown.",
        )
        self._waits = counter(
            "perdure_waits",
            "Events that ended or moved waits: wait.expired, question.reminded, signal.delivered, "
            "signal.kept and signal.duplicate.",
            ("outcome",),
        )
        self._limit_waits = histogram(
            "perdure_limit_wait_seconds",
            "Time for which a call or a run waited for a limit over all processes, 0 included.",
            ("limit",),
            buckets=_AGES_S,
        )
        self._limit_in_use = summed(
            "perdure_limit_in_use",
            "Calls or runs of this process that are under way and count towards a limit.",
            ("limit",),
        )
        self._limit_waiting = greatest(
            "perdure_limit_waiting_runs",
            "Threads whose next run waits for a limit, as this process sees it.",
            ("limit",),
        )
        self._limit_refused = counter(
            "perdure_limit_refused",
            "Calls and runs that a limit refused, and calls whose run was put off.",
            ("limit",),
        )

    def event(self, name: str, fields: dict[str, Any]) -> None:
        if name in self._counted:
            self._counted[name].inc()
            return
        match name.split("."):
            case ["message", outcome]:
                self._messages.labels(self._label_graph(fields), self._label_channel(fields), outcome).inc()
            case ["run", state]:
                self._run_event(name, state, fields)
            case ["model", "called"]:
                self._count_call(fields)
            case ["conversation" | "memory" | "state", _]:
                if name in self._by_event:
                    self._by_event[name].labels(self._label_graph(fields)).inc()
            case ["wait" | "question" | "signal", _]:
                self._waits.labels(name).inc()
            case ["limit", what]:
                self._count_limit_event(what, fields)
            case ["checkpoint", "stored"]:
                graph = self._label_graph(fields)
                for channel, size in fields["channels"].items():
                    # A program may make graphs at run time, so the number of names is limited.
                    self._sizes.labels(graph, _choose_label(channel, self._state_channels)).observe(size)
            case ["reply", state]:
                self._deliveries.labels(self._label_channel(fields), state).inc()
            case ["sweep" | "worker" | "database", _]:
                self._process_event(name, fields)
            case _:
                pass

    def _run_event(self, name: str, state: str, fields: dict[str, Any]) -> None:
        graph = self._label_graph(fields)
        if name in self._by_event:
            self._by_event[name].labels(graph).inc()
        if state == "claimed" and fields["attempts"] == 1:
            self._age.labels(graph).observe(_seconds(fields["waited"]))
        if "took" in fields:
            self._duration.labels(graph, state).observe(_seconds(fields["took"]))

    def _count_limit_event(self, what: str, fields: dict[str, Any]) -> None:
        for limit in map(self._choose_reported_name, fields.get("limit", "").split(",")):
            match what:
                case "waited":
                    self._limit_waits.labels(limit).observe(_seconds(fields["waited"]))
                    self._limit_in_use.labels(limit).inc()
                case "ended":
                    self._limit_in_use.labels(limit).dec()
                case "refused":
                    self._limit_refused.labels(limit).inc()
                case "waiting_runs":
                    self._limit_waiting.labels(limit).set(fields["threads"])
                case _:
                    pass

    def _process_event(self, name: str, fields: dict[str, Any]) -> None:
        match name:
            case "sweep.finished":
                for count, counter in self._swept.items():
                    counter.inc(fields[count])
            case "sweep.seen":
                self._sweep_ended.set(fields["finished_at"] / 1_000_000)
                self._sweep_every.set(fields["every"] / 1_000_000)
            case "database.keys":
                self._data_keys.set(fields["data_keys"])
                self._keys_wrapped.set(fields["wrapped_at"] / 1_000_000)
            case "database.password":
                self._password_failures.set(fields["failures"])
                self._password_ends.set((fields["ends_at"] or 0) / 1_000_000)
            case "worker.unserved_threads":
                what = next(each for each in ("graph", "channel", "service") if each in fields)
                self._unserved.labels(what, self._choose_reported_name(fields[what])).set(fields["threads"])
            case "worker.failing_threads":
                lane, error = map(self._choose_reported_name, (fields["lane"], fields["error"]))
                self._failing.labels(lane, error).set(fields["threads"])
            case _:
                pass

    @contextmanager
    def span(self, name: str, fields: dict[str, Any]) -> Iterator[None]:
        if name == "run":
            with self._open.labels(self._label_graph(fields)).track_inprogress():
                yield
        elif name == "send":
            began = time.perf_counter()
            try:
                yield
            finally:
                took = time.perf_counter() - began
                self._delivering.labels(self._label_channel(fields)).observe(took)
        else:
            yield

    def _count_call(self, fields: dict[str, Any]) -> None:
        hop, model = map(self._choose_reported_name, (fields["hop"], fields["model"]))
        labels = self._label_graph(fields), hop, model
        self._calls.labels(*labels).observe(_seconds(fields["took"]))
        for direction in ("input", "output"):
            self._tokens.labels(*labels, direction).inc(fields[f"{direction}_tokens"])
        if "cost" in fields:
            self._cost.labels(*labels).inc(fields["cost"])
        if "error" in fields:
            self._call_errors.labels(*labels).inc()

    def _label_graph(self, fields: dict[str, Any]) -> str:
        graph: str = fields["graph"]
        if graph not in self._graphs:
            self._graphs.add(graph)
            # A rate needs a zero to rise from, so that the first lost or failed run shows.
            for counter in self._by_event.values():
                counter.labels(graph)
            self._duration.labels(graph, FAILED)
        return graph

    def _label_channel(self, fields: dict[str, Any]) -> str:
        """Return a channel's name as a label. ``accept`` takes any name, so the number of labels is
        limited."""
        channel: str = fields["channel"]
        if channel in self._channels:
            return channel
        channel = _choose_label(channel, self._channels)
        if channel in self._channels:
            for state in (DEAD, UNKNOWN):
                self._deliveries.labels(channel, state)
        return channel

    def _choose_reported_name(self, name: str) -> str:
        """Return the label for the name of a graph, channel, queue or error; the number of labels is
        limited."""
        return _choose_label(name, self._reported_names)


@cache
def of_process() -> Metrics:
    """Return the metrics that all runtimes of this process share, in the process's own registry."""
    return Metrics()


def exposition(accept: str = "", registry: CollectorRegistry | None = None) -> tuple[bytes, str]:
    """Return a registry's metrics, by default the process's own, as text for an ``Accept`` header, and its
    media type. With ``PROMETHEUS_MULTIPROC_DIR`` set, the metrics of all processes there."""
    encoder, media_type = choose_encoder(accept)
    return encoder(_find_registry() if registry is None else registry), media_type


@contextmanager
def serve_metrics(host: str, port: int) -> Iterator[str]:
    """Serve this process's metrics from an OS thread during the block, and yield the URL.

    For a process that serves no HTTP routes of its own.

    Args:
        host: The address to listen on.
        port: The port; 0 takes a free one.

    Raises:
        BadSetting: The address cannot be used.
    """
    try:
        server, thread = start_http_server(port, addr=host, registry=_find_registry())
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise BadSetting(
                f"port {port} of {host} is taken, metrics cannot be served there; stop what listens there, "
                "or choose another metrics port"
            ) from None
        raise BadSetting(f"metrics cannot be served at {host}, port {port}: {error.strerror}") from error
    try:
        yield f"http://{f'[{host}]' if ':' in host else host}:{server.server_port}/metrics"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _find_registry() -> CollectorRegistry:
    """Return this process's metrics, or those of all processes that share a folder for them."""
    if "PROMETHEUS_MULTIPROC_DIR" not in os.environ:
        return REGISTRY
    registry = CollectorRegistry()
    MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    return registry


def _choose_label(name: str, known: set[str]) -> str:
    """Return a name as a label, and add it to the known names; all names beyond a limit share one label."""
    if name not in known:
        if len(known) >= _NAMES_MAX:
            return _OTHER
        known.add(name)
    return name


def _seconds(microseconds: int) -> float:
    """Return a difference of two clocks in seconds; at least 0, as the clocks may disagree."""
    return max(0.0, microseconds / 1_000_000)
