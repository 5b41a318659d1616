"""Retention settings: the policies, and how a sweep applies them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from perdure.config.resolve import ResolvedConfig, resolve_config
from perdure.errors import BadSetting
from perdure.model.retention_policy import Retention, RetentionRules, ThreadTtl, parse_duration

_FIELDS = ("keep_last", "keep_for", "idle", "keep_tagged")


@dataclass(frozen=True, slots=True)
class RetentionSettings:
    """Checked settings of retention: the policies, the seconds between two sweeps, the share of its time
    for which a sweep works, and ``runtime.keep`` if it is given."""

    rules: RetentionRules
    every: float
    share: float
    keep: float | None = None


def read_retention(
    configuration: ResolvedConfig, flags: Mapping[str, Any] = MappingProxyType({})
) -> RetentionSettings:
    """Return the settings of retention.

    If one of the ``flags`` is of a policy, they are the default policy: its fields in other sources, and the
    usual time to live, have no effect, as they could remove more than the command says.

    ``checkpointer.ttl.default_ttl`` of ``langgraph.json`` is another name of ``idle``, in minutes, if expired
    threads are to be deleted.

    Raises:
        BadSetting: settings do not fit together.
    """
    given = configuration.select_given("retention.")
    of_flags = [name for name in _FIELDS if flags.get(name) is not None]
    own = {name: given[name] for name in of_flags or _FIELDS if name in given}
    ttl = None if of_flags else thread_ttl(configuration)
    minutes = None if ttl is None else ttl.default_ttl
    if minutes is not None and configuration["checkpointer.ttl.strategy"] == "delete":
        if "idle" in own:
            idle_name, ttl_name = map(configuration.name, ("retention.idle", "checkpointer.ttl.default_ttl"))
            raise BadSetting(f"{idle_name} and {ttl_name} both set when a thread expires; set one of them")
        own["idle"] = minutes * 60
    if own.keys() == {"keep_tagged"}:
        name = configuration.name("retention.keep_tagged")
        raise BadSetting(f"{name} is set, but no thread expires; set retention.idle, e.g. to '90d'")
    try:
        rules = RetentionRules(
            Retention(**own) if own else None,
            given.get("policies", {}),
            given.get("assistants", {}),
            usual_ttl=ttl,
        )
    except ValueError as error:
        raise BadSetting(f"{configuration.name('retention.assistants')}: {error}") from error
    every = parse_duration(configuration["retention.every"]) / 1_000_000
    if ttl is not None:
        every = min(every, 60 * ttl.sweep_interval_minutes)
    keep = configuration.select_given("runtime.").get("keep")
    return RetentionSettings(rules, every, configuration["retention.share"], keep)


def thread_ttl(configuration: ResolvedConfig) -> ThreadTtl | None:
    """Return the time to live of threads that is set under ``checkpointer.ttl``, if any.

    Raises:
        BadSetting: it has no ``default_ttl``.
    """
    given = configuration.select_given("checkpointer.ttl.")
    if not given:
        return None
    table = configuration.table("checkpointer.ttl.")
    if table["default_ttl"] is None:
        first = next(
            each for key, each in configuration.entries.items() if key.startswith("checkpointer.ttl.")
        )
        raise BadSetting(
            f"{first.name} is set for old threads, but the age at which it applies is not; set "
            "checkpointer.ttl.default_ttl, in minutes"
        )
    return ThreadTtl(**table)


def load(
    *, file: Path | None, flags: Mapping[str, Any], environ: Mapping[str, str], has_key: bool
) -> RetentionSettings:
    """Return the settings of retention for a command.

    Args:
        file: the only file to read, as for ``resolve_config``.
        flags: values of the command's flags by the names of settings under ``retention.``; ``None`` for
            those that were not given.
        environ: the environment.
        has_key: True if stored data is encrypted.

    Raises:
        BadSetting: a source cannot be read, has an invalid setting, or no policy is given.
    """
    by_key = {f"retention.{name}": (value, flag_name(name)) for name, value in flags.items()}
    configuration = resolve_config(file=file, flags=by_key, environ=environ, has_key=has_key)
    settings = read_retention(configuration, flags)
    if settings.rules.is_empty:
        raise BadSetting(
            "which threads and checkpoints may go? Pass --keep-last 50, --keep-for 30d or --idle 90d, or "
            "write them under [retention] in perdure.toml"
        )
    return settings


def flag_name(name: str) -> str:
    """Return the flag of a command for a setting."""
    return f"--{name.replace('_', '-')}"
