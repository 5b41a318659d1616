"""The section of servers under load."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bench.figures import median, median_ratio
from bench.served.hosts import AEGRA, HOSTS, LANGGRAPH, PERDURE_PG
from bench.served.tested import VARIANT
from bench.tables import NONE, Row, number, table, times
from bench.workloads.server import SHARE, TOO_LATE, find_doubling

Results = dict[str, Any]


def server(results: Results) -> list[str]:
    found = results.get("server")
    if not found:
        return []
    hosts = present(found["hosts"])
    return [
        "## Servers under load",
        "Perdure's server compared with `langgraph dev`, the server of LangGraph's command line, and Aegra, "
        "an open server with the same API. All serve the same two graphs of one node and receive the same "
        "requests; each is one process without authentication. They differ in what they have stored when "
        "they answer:",
        *_write_kept(found),
        *(_figures(found, hosts) if hosts else []),
        _write_closing(found, hosts),
    ]


def present(hosts: Results) -> Results:
    """The servers that were measured."""
    return {name: seen for name, seen in hosts.items() if "skipped" not in seen}


def write_missing(hosts: Results) -> list[str]:
    """A paragraph on those that were not, if there are any."""
    lines = [
        f"- {HOSTS[name].label} was not measured: {seen['skipped']}."
        for name, seen in hosts.items()
        if "skipped" in seen
    ]
    return ["\n".join(lines)] if lines else []


def client_share(shares: Sequence[float]) -> str:
    """A sentence more, on the processor that the client took from the servers."""
    return f" The client had {max(shares):.0%} of one processor at most." if shares else ""


def _write_kept(found: Results) -> list[str]:
    rows: list[Row] = []
    for name, seen in present(found["hosts"]).items():
        host = HOSTS[name]
        packages = ", ".join(f"{package} {version}" for package, version in seen["packages"].items())
        rows.append([host.label, f"{packages}; Python {seen['python']}", host.keeps])
    lines = ["| | versions | what is kept |", "|---|---|---|", *(f"| {' | '.join(row)} |" for row in rows)]
    keepers = [
        seen["settings"] + (f"; here `{VARIANT}`" if seen["variant"] else "")
        for seen in found["keepers"].values()
        if "settings" in seen
    ]
    return [
        *(["\n".join(lines)] if rows else []),
        *write_missing(found["hosts"]),
        *([f"Behind them: {'; '.join(keepers)}. SQLite as it comes with Perdure."] if keepers else []),
    ]


def _figures(found: Results, hosts: Results) -> list[str]:
    streams = (
        f"A model that says {found['tokens']} tokens, the first at once and each of the others "
        f"{number(found['pause_ms'])} ms later. Streams begin at different times, so that they are spread "
        f"evenly over their duration, with {found['least_streams']} or more streams per level and round. The "
        f"figures are the {SHARE * 100:.0f}th percentile of the times to the first token, ms. The ramp of a "
        f"server ends after the level at which it is more than {TOO_LATE:.0f} times that of a single stream:"
    )
    return [
        "### Requests that wait for their run",
        f"`POST /threads/{{id}}/runs/wait` on threads that have had a run, one client a thread, which sends "
        f"the next when the one before was answered: {found['lone_requests']} from one client, then "
        f"{found['requests_a_client']} from each of {found['clients']}, or those of "
        f"{number(found['requests_budget_s'])} s where these are fewer:",
        _requests(found, hosts),
        "### Streams at once",
        streams,
        _streams(found, hosts),
        "### A stream on which nothing happens",
        f"`POST /threads/{{id}}/stream/events` on {found['idle_streams']} new threads, held open in a server "
        "that has just started and answered a few requests. Memory of its processes, and the increase:",
        _idle(hosts),
    ]


def _requests(found: Results, hosts: Results) -> str:
    def rates(name: str, which: str) -> list[float]:
        return [visit["requests_per_s"] for visit in hosts.get(name, {}).get(which, [])]

    rows: list[Row] = []
    for name, seen in hosts.items():
        cells = [HOSTS[name].label]
        for which in ("one", "many"):
            mine = rates(name, which)
            cells += [number(median(mine)), times(median_ratio(rates(LANGGRAPH, which), mine))]
        cells.insert(3, number(median([visit["p50_ms"] for visit in seen["one"]])))
        rows.append([*cells, number(median([visit["cpu_ms"] for visit in seen["many"]]))])
    header = [
        "",
        "1 client: a second",
        "of `langgraph dev`'s",
        "a request, ms",
        f"{found['clients']} clients: a second",
        "of `langgraph dev`'s",
        "its processor a request, ms",
    ]
    return table(header, rows)


def _late(seen: Results, levels: list[int]) -> list[tuple[int, float]]:
    """Levels that any ramp came to, with the median of those that did."""
    found = [
        (level, [ramp[str(level)] for ramp in seen["streams"] if str(level) in ramp]) for level in levels
    ]
    return [(level, median(late)) for level, late in found if late]


def _streams(found: Results, hosts: Results) -> str:
    levels = found["levels"]
    rows: list[Row] = []
    for name, seen in hosts.items():
        late = _late(seen, levels)
        there = dict(late)
        doubled = find_doubling(late)
        cells = [number(there[level]) if level in there else NONE for level in levels]
        rows.append(
            [HOSTS[name].label, *cells, f"more than {levels[-1]}" if doubled is None else str(doubled)]
        )
    return table(["streams at once", *map(str, levels), "doubled at"], rows)


def _idle(hosts: Results) -> str:
    rows: list[Row] = [
        [
            HOSTS[name].label,
            number(median([visit["before"] for visit in seen["idle"]]) / 1e6),
            number(median([visit["a_stream"] for visit in seen["idle"]]) / 1e3),
        ]
        for name, seen in hosts.items()
    ]
    return table(["", "without, MB", "a stream, kB"], rows)


def _write_closing(found: Results, hosts: Results) -> str:
    shares = [share for seen in hosts.values() for share in seen["shares"]]
    share = client_share(shares)
    pythons = {hosts[name]["python"] for name in (PERDURE_PG, AEGRA) if name in hosts}
    python = " Aegra needs a newer Python than the others here run on." if len(pythons) > 1 else ""
    return (
        "Read this with care. `langgraph dev` is made for development, and lets half a second pass between "
        "two looks at an empty queue, which is most of what a lone request takes there; LangGraph's server "
        "for production needs a licence and is not measured. Aegra with Valkey looks every two seconds for "
        "the end of a run that a request waits for; its streams do not wait so. A ramp finds when a server "
        "gets worse, not whether it is good: one that is slow with a single stream doubles late, so look at "
        f"the milliseconds too. All were allowed {found['concurrency']} runs at once where they have such a "
        "setting, more than their defaults, and set to log warnings only; `langgraph dev` was set not to "
        "look for blocking calls or changed files. Servers, their databases and the client share one machine "
        "and no network, so that a server with a database beside it has less of the processors for itself. "
        f"Figures are medians of {_rounds(found['repeats'])} in which the servers take turns, those of "
        f"memory of {_rounds(found['idle_repeats'])}; ratios are those of neighbours. A server that is not "
        "measured is stopped, but for Aegra with Valkey, which idles: it takes seconds to come back. "
        f"No model is waited for: an agent that thinks for a second shows little of all this.{share}{python}"
    )


def _rounds(count: int) -> str:
    return f"{count} rounds" if count > 1 else "one round"
