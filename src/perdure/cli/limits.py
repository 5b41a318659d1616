"""Commands on limits over all processes: their usage and waiting calls, and changes of their amounts."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from perdure.cli.app import (
    AsJson,
    DataPlace,
    add_listing,
    handle_in,
    json_text,
    make_legible,
    new_group,
    open_database,
    out,
    print_json,
    print_result,
    run_coroutine,
    say,
)
from perdure.cli.runs import format_time
from perdure.cli.thread_steps import money, read_currency

limits = new_group(
    "limits",
    "Look at limits over all processes, which of them are near their end, and change what they allow.",
)

Name = Annotated[str, typer.Argument(help="The name of the limit, as it is declared")]


def _check_key_parts(values: list[str] | None) -> list[str] | None:
    if wrong := [value for value in values or () if "=" not in value]:
        raise typer.BadParameter(f"a part of a key is e.g. user=ada, not {wrong[0]!r}")
    return values


Key = Annotated[
    list[str] | None,
    typer.Option(
        "--key",
        help="A part of the key, e.g. user=ada or model=gpt-4o; once for each field of `by`",
        callback=_check_key_parts,
    ),
]


def list_limits(
    name: Annotated[str | None, typer.Argument(help="Only the limit of this name")] = None,
    *,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="The maximum number of keys")] = 100,
    place: DataPlace,
    as_json: AsJson = False,
) -> None:
    """List the keys of limits that are in use, the nearest to the end first: what is used now, what waits,
    and when there is more.

    The percentage is that of the amount of which most is used. A rate allows a burst at once after a pause,
    and the percentage is that of the burst. A key that was not used for a while is not stored. Amounts set by
    `perdure limits set` are listed, too.
    """
    from perdure.runtime.operations import limit_states

    with open_database(place) as database:
        handle = handle_in(database)
        found, count = run_coroutine(limit_states.read_largest(handle, place.tenant, name, limit))
        changed = run_coroutine(limit_states.read_amounts(handle, place.tenant))
    currency = read_currency()
    for entry in found:
        if as_json:
            print_json(entry)
        else:
            _print(entry, currency)
    for each, amounts in sorted(changed.items()):
        if name in (None, each):
            line = f"{make_legible(each)}  is set to {_describe_amounts(amounts)}"
            print_result(as_json, {"limit": each, "set": dict(amounts)}, line)
    if not as_json and count > limit:
        out.print(f"There are {count:,} keys; raise --limit, or name a limit.")
    if not as_json and not found and not changed:
        out.print("No limit is in use.")


def show(
    name: Name,
    key: Key = None,
    *,
    place: DataPlace,
    as_json: AsJson = False,
) -> None:
    """Show one key of a limit, with the processes that have a share of it."""
    from perdure.runtime.operations import limit_states

    with open_database(place) as database:
        found = run_coroutine(
            limit_states.read_entry(handle_in(database), place.tenant, name, _parse_key(key))
        )
    if as_json:
        print_json(found)
        return
    _print(found, read_currency())
    for process in found["processes"]:
        counts = f"{process['places']} places, {process['waiting']} waiting"
        lease = f"lease until {format_time(process['lease_until'])}"
        say(f"    {make_legible(process['name'])}  {counts}, {lease}")


def set_(
    name: Name,
    *,
    concurrency: Annotated[int | None, typer.Option(help="How many may be under way at once")] = None,
    rate: Annotated[float | None, typer.Option(help="How many may begin in a minute")] = None,
    burst: Annotated[int | None, typer.Option(help="How many may begin at once after a pause")] = None,
    tokens: Annotated[float | None, typer.Option(help="Tokens of models a minute")] = None,
    budget: Annotated[float | None, typer.Option(help="Money a day")] = None,
    at_end: Annotated[str | None, typer.Option(help="When a budget is used up: refuse or wait")] = None,
    wait: Annotated[float | None, typer.Option(help="Seconds that a call waits in its node")] = None,
    clear: Annotated[
        bool, typer.Option("--clear", help="Let what is configured count again, without the rest")
    ] = False,
    place: DataPlace,
    as_json: AsJson = False,
) -> None:
    """Set the amounts of a limit, in place of the configured ones, for all processes and the keys of a
    tenant.

    Processes follow within about 10 seconds; callers that wait go on if there is room then. The values that
    are set stay until --clear.
    """
    from perdure.runtime.operations import limit_states

    amounts = {"concurrency": concurrency, "rate": rate, "burst": burst, "tokens": tokens, "budget": budget}
    flags: dict[str, Any] = {**amounts, "at_end": at_end, "wait": wait}
    given = {field: value for field, value in flags.items() if value is not None}
    if bool(given) == clear:
        raise typer.BadParameter("give the amounts to set, e.g. --rate 600, or else --clear")
    with open_database(place) as database:
        handle = handle_in(database)
        if clear:
            run_coroutine(limit_states.clear_amounts(handle, place.tenant, name))
        else:
            given = run_coroutine(limit_states.set_amounts(handle, place.tenant, name, given))
    what = "what is configured counts again" if clear else _describe_amounts(given)
    print_result(as_json, {"limit": name, "set": given}, f"{make_legible(name)}: {what}")


def reset(
    name: Name,
    key: Key = None,
    *,
    place: DataPlace,
    as_json: AsJson = False,
) -> None:
    """Reset the rate, the tokens and the budget of a key, as if nothing was used yet.

    Calls and runs that are under way keep their places.
    """
    from perdure.runtime.operations import limit_states

    parts = _parse_key(key)
    with open_database(place) as database:
        run_coroutine(limit_states.reset(handle_in(database), place.tenant, name, parts))
    line = f"{make_legible(name)}{_describe_key(parts)}: begins anew"
    print_result(as_json, {"limit": name, "key": parts, "reset": True}, line)


def _parse_key(parts: list[str] | None) -> dict[str, str]:
    return dict(part.split("=", 1) for part in parts or ())


def _describe_key(key: dict[str, str]) -> str:
    return "".join(f" of {make_legible(what)} {make_legible(name)}" for what, name in key.items())


def _describe_amounts(amounts: Any) -> str:
    return ", ".join(
        f"{make_legible(field)} {make_legible(json_text(value))}" for field, value in amounts.items()
    )


def _print(entry: dict[str, Any], currency: str) -> None:
    parts: list[str] = []
    if places := entry.get("concurrency"):
        parts.append(f"{places['used']} of {places['most']} at once")
    for what, unit in (("rate", "a minute"), ("tokens", "tokens a minute")):
        if rate := entry.get(what):
            parts.append(f"{rate['left']:,} of {rate['burst']:,} left at once, {rate['most']:,g} {unit}")
            if rate["next_at"]:
                parts[-1] += f", more at {format_time(rate['next_at'])}"
    if budget := entry.get("budget"):
        left = max(0.0, budget["most"] - budget["spent"] - budget["held"])
        spent = f"{money(budget['spent'], '')} of {money(budget['most'], currency)} spent"
        if budget["held"]:
            spent += f", {money(budget['held'], '')} held for calls"
        parts.append(f"{spent}, {money(left, '')} left, anew at {format_time(budget['resets_at'])}")
    if entry["waiting"]:
        parts.append(f"{entry['waiting']:,} waiting")
    what = {"model": "calls of models", "tool": "calls of tools", "run": "runs"}[entry["of"]]
    name = f"{make_legible(entry['limit'])}{_describe_key(entry['key'])}"
    say(f"{entry['share']:>4.0%}  {name}  {what}: {'; '.join(parts)}")


add_listing(limits, list_limits)
limits.command()(show)
limits.command("set")(set_)
limits.command()(reset)
