"""Sources of settings: ``perdure.toml``, ``langgraph.json``, a ``.env`` file and the environment.

Each source becomes a mapping of keys with dots to values. Here only the form of files and the names of keys
are checked; values are checked elsewhere. ``langgraph.json`` belongs to another tool: none of its known keys
is ignored if that would change the server's behaviour; unknown ones are logged as warnings.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

from perdure.config.settings import SETTINGS, Setting
from perdure.config.unsupported_keys import IGNORED, REFUSED
from perdure.config.value_kinds import is_no
from perdure.errors import BadSetting, MissingExtra

OWN, LANGGRAPH = "perdure.toml", "langgraph.json"
_PREFIX = "PERDURE_"
_OTHERS = frozenset(("PERDURE_TENANT",))
"""Variables that other parts of the command line read."""


class GivenValue(NamedTuple):
    """Value with its source. ``name`` is the name under which it was given, ``base`` the folder at which its
    paths start; ``is_text`` marks text of the environment, which has to be parsed."""

    value: Any
    name: str
    source: str
    base: Path
    is_text: bool = False


class Layer(NamedTuple):
    """Settings of one source, its entries that have no effect, and its tables without any entry."""

    entries: dict[str, GivenValue]
    ignored: tuple[str, ...] = ()
    empty_tables: tuple[str, ...] = ()


def read_file(path: Path) -> Layer:
    """Return the settings of a file; ``.json`` is read as LangGraph's, anything else as ``perdure.toml``.

    Raises:
        BadSetting: The file cannot be read, or has a key that is unknown or cannot be supported.
    """
    text = _read_text(path)
    is_own = path.suffix != ".json"
    try:
        content = tomllib.loads(text) if is_own else json.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BadSetting(f"{path} cannot be read: {error}") from error
    except json.JSONDecodeError as error:
        raise BadSetting(f"{path}, line {error.lineno}: {error.msg}") from error
    except RecursionError as error:
        raise BadSetting(f"{path} cannot be read: it is nested too deeply") from error
    if not isinstance(content, dict):
        raise BadSetting(f"{path} holds no object; write {{…}} with graphs in it")
    entries: dict[str, GivenValue] = {}
    ignored: list[str] = []
    empty: list[str] = []
    for key, value in _flatten(content, path, "", is_own):
        setting = SETTINGS.get(key)
        if setting is None and _is_table(key):
            empty.append(key)
        elif setting is not None and (is_own or setting.langgraph):
            entries[key] = GivenValue(value, f"{key} in {path}", str(path), path.parent.absolute())
        elif is_own:
            raise BadSetting(f"{path} has {key}, which is not a setting; {_suggest_known(key, SETTINGS)}")
        elif key in REFUSED:
            raise BadSetting(f"{key} in {path} cannot be followed: {REFUSED[key]}; then take it out")
        elif key not in IGNORED:
            ignored.append(f"{key} in {path}{_suggest_key(key)}")
    return Layer(entries, tuple(ignored), tuple(empty))


def env_file_of(entry: GivenValue) -> Path | None:
    """Return the file that an ``env`` setting names, which need not exist; ``None`` for a table."""
    named = value_of(SETTINGS["env"], entry)
    return None if isinstance(named, dict) else entry.base / named


def read_env_file(entry: GivenValue, environ: Mapping[str, str]) -> tuple[dict[str, str], Layer]:
    """Return the variables of an ``env`` setting that the environment does not set, and its entries without
    effect."""
    path = env_file_of(entry)
    if path is None:
        named = value_of(SETTINGS["env"], entry)
        return {name: value for name, value in named.items() if name not in environ}, Layer({})
    if not path.exists():
        # An image does not contain the file: its variables are set from outside.
        return {}, Layer({}, (f"{entry.name}: there is no file {path}",))
    return {name: value for name, value in _read_variables(path).items() if name not in environ}, Layer({})


def read_environment(environ: Mapping[str, str], from_file: Mapping[str, str], base: Path) -> Layer:
    """Return the settings of the variables that are set and not empty.

    Args:
        environ: The environment.
        from_file: Variables of a file, which the environment does not set.
        base: The folder at which relative paths start.
    """
    variables = {**environ, **from_file}
    known = {name for setting in SETTINGS.values() for name in setting.variables}
    entries = {
        setting.key: GivenValue(variables[name], name, name, base, is_text=True)
        for setting in SETTINGS.values()
        for name in reversed(setting.variables)
        if variables.get(name)
    }
    unknown = sorted(name for name in variables if name.startswith(_PREFIX) and name not in known | _OTHERS)
    return Layer(
        entries, tuple(f"{name} in the environment; {_suggest_known(name, known)}" for name in unknown)
    )


def value_of(setting: Setting, entry: GivenValue) -> Any:
    """Return a checked value.

    Raises:
        BadSetting: The value is invalid; the message has its name, advice, and the value unless it is a
            secret.
    """
    kind = setting.kind
    if entry.is_text and entry.source in setting.set_means_on:
        # LangGraph only examines whether it is set; the text may be "studio", for instance.
        return not is_no(str(entry.value))
    try:
        return kind.check(kind.read(entry.value) if entry.is_text else entry.value)
    except ValueError as error:
        # The errors of int() and float() repeat the value; those of our checks give advice.
        advice = str(error)
        has_advice = advice and not advice.startswith(("invalid literal", "could not convert"))
        if has_advice and isinstance(entry.value, dict):
            # The message names the entry of the table.
            raise BadSetting(f"{entry.name}: {error}") from None
        if not has_advice:
            advice = f"it has to be {kind.wants}"
        shown = "cannot be used" if setting.secret else f"is {_format(entry.value)}"
        raise BadSetting(f"{entry.name} {shown}; {advice}") from None


def _format(value: object) -> str:
    if isinstance(value, dict):
        return "a table" if value else "an empty table"
    if isinstance(value, bool):
        return str(value).lower()
    text = repr(value)
    if len(text) <= 80:
        return text
    return f"{text[:79]}…"


def _read_text(path: Path) -> str:
    try:
        # Some editors begin a file with a byte order mark.
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise BadSetting(f"{path}, line {line}: it is not UTF-8 text; save it as UTF-8") from error
    except OSError as error:
        raise BadSetting(f"{path} cannot be read: {error.strerror}; check the path") from error


def _flatten(table: Mapping[str, Any], path: Path, prefix: str, is_own: bool) -> Iterator[tuple[str, Any]]:
    """Yield values by key with dots; a table is one value if a setting has its name, if no setting lies
    within it, or if it is empty."""
    for name, value in table.items():
        key = f"{prefix}{name}"
        if key in SETTINGS or not _is_table(key):
            if value is not None:
                yield key, value
        elif value == {}:
            yield key, value
        elif isinstance(value, dict):
            yield from _flatten(value, path, f"{key}.", is_own)
        elif value is not None:
            advice = f"write it as a table, [{key}]" if is_own else "write it as an object"
            raise BadSetting(f"{key} in {path} is {_format(value)}; {advice}")


def _is_table(key: str) -> bool:
    return any(known.startswith(f"{key}.") for known in SETTINGS)


def _suggest_key(key: str) -> str:
    """Return a hint at the key of LangGraph's file that an ignored one resembles, if any: other keys are
    those of other programs."""
    known = {name for name, setting in SETTINGS.items() if setting.langgraph}
    near = get_close_matches(key, known | IGNORED.keys() | REFUSED.keys(), 1, 0.8)
    if near:
        return f"; did you mean {near[0]}?"
    return ""


def _suggest_known(name: str, known: Iterable[str]) -> str:
    """Return a hint at the known name closest to an unknown one: similar as a whole, or with the same last
    part elsewhere."""
    known = list(known)
    by_last_part = {each.rpartition(".")[2]: each for each in reversed(known)}
    similar = get_close_matches(name, known, 1)
    same_part = get_close_matches(name.rpartition(".")[2], by_last_part, 1, 0.8)
    table = name.rpartition(".")[0]
    if same_part and not (similar and similar[0].rpartition(".")[0] == table):
        return f"did you mean {by_last_part[same_part[0]]}?"
    if similar:
        return f"did you mean {similar[0]}?"
    in_table = [each for each in known if each.rpartition(".")[0] == table]
    if in_table:
        return f"there is {', '.join(in_table)}"
    return "take it out"


def _read_variables(path: Path) -> dict[str, str]:
    try:
        from dotenv import dotenv_values
        from dotenv.parser import parse_stream
    except ModuleNotFoundError as error:
        raise MissingExtra(f'{path} needs an extra to be read: pip install "perdure[server]"') from error
    text = _read_text(path)
    for binding in parse_stream(StringIO(text)):
        if binding.error:
            string = binding.original.string
            line = binding.original.line + string[: len(string) - len(string.lstrip())].count("\n")
            raise BadSetting(
                f"{path}, line {line}: it is not a variable; write NAME=value, a value with blanks in quotes"
            )
    return {name: value for name, value in dotenv_values(stream=StringIO(text)).items() if value is not None}
