"""A program that uses the library: turns of histories, and items that are changed by comparison.

It is a process of its own, and may be killed at any moment.
"""

from __future__ import annotations

import itertools
import os
import random
import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from .load import item_name
from .recording import OK, REFUSED, UNKNOWN, Recorder

if TYPE_CHECKING:
    from perdure.database.blocking import SyncDatabase
    from perdure.history import SessionHistory

TTL_S = 6.0
_PADDING = " " + "x" * 60_000
"""What the messages of a session that expires are filled up with, so that it has records of several ages."""
_TURNS = 60
"""How many turns of a program go to a session before the next."""
_PAUSE_S = (0.05, 0.4)
_AGAIN_S = 0.5
_THOUGHT_S = (0.0, 0.0, 0.1, 0.3)
"""How long a program works on what it has read."""


def take_turns(url: str, file: str, name: str, tenants: list[str]) -> None:
    """Use a database until the process is ended."""
    import perdure
    from perdure.errors import Unavailable

    name = f"{name}-{os.getpid()}"
    recorder = Recorder(Path(file), name)
    while True:
        try:
            with perdure.connect_sync(url) as database:
                _use(database, recorder, name, tenants)
        except Unavailable:
            # It is away as this process starts; the calls of one that is open say so in the record.
            time.sleep(_AGAIN_S)


def _use(database: SyncDatabase, recorder: Recorder, name: str, tenants: list[str]) -> None:
    chance = random.Random(name)
    for number in itertools.count(1):
        tenant = chance.choice(tenants)
        how = chance.random()
        if how < 0.6:
            session = f"session-{number // _TURNS}"
            _take_turn(database, recorder, tenant, session, f"{name}.{number}", chance)
        elif how < 0.75:
            session = f"expiring-{number // _TURNS // 2}"
            _take_turn(database, recorder, tenant, session, f"{name}.{number}", chance, ttl_s=TTL_S)
        else:
            _exchange(database, recorder, tenant, f"{name}.{number}", chance)
        time.sleep(chance.uniform(*_PAUSE_S))


def read_sessions(url: str, file: str, name: str, tenants: list[str]) -> None:
    """Load every session there is, once."""
    import perdure

    recorder = Recorder(Path(file), name)
    with perdure.connect_sync(url) as database:
        for tenant in tenants:
            histories = database.history(tenant=tenant)
            for session in histories.sessions():
                load = recorder.note_call("load", (tenant, session))
                recorder.note_answer(load, OK, elements=_elements(histories.load(session)))


def _take_turn(
    database: SyncDatabase,
    recorder: Recorder,
    tenant: str,
    session: str,
    key: str,
    chance: random.Random,
    *,
    ttl_s: float | None = None,
) -> None:
    """Load a session and add a turn of two messages, again while its outcome is not known."""
    from perdure.errors import Conflict, PerdureError

    histories = database.history(tenant=tenant, ttl=None if ttl_s is None else timedelta(seconds=ttl_s))
    padding = "" if ttl_s is None else _PADDING
    elements = [f"{tenant}/{session}/{key}/{n}" for n in range(2)]
    messages = [{"role": "user", "content": element + padding} for element in elements]
    for _ in range(chance.choice((1, 1, 3, 10))):
        load = recorder.note_call("load", (tenant, session), ttl_s=ttl_s)
        try:
            history = histories.load(session)
        except PerdureError as error:
            recorder.note_answer(load, UNKNOWN, error=type(error).__name__)
            time.sleep(0.3)
            continue
        seen = _elements(history)
        recorder.note_answer(load, OK, elements=seen)
        if history.has_turn(key):
            return
        time.sleep(chance.choice(_THOUGHT_S))
        turn = recorder.note_call(
            "turn", (tenant, session), elements=elements, seen=len(seen), key=key, ttl_s=ttl_s,
            base=None if ttl_s is None else seen,
        )  # fmt: skip
        try:
            histories.commit(history, messages, key=key)
        except Conflict:
            recorder.note_answer(turn, REFUSED)
        except PerdureError as error:
            recorder.note_answer(turn, UNKNOWN, error=type(error).__name__)
        else:
            recorder.note_answer(turn, OK)
            return


def _elements(history: SessionHistory) -> list[str]:
    return [str(message["content"]).partition(" ")[0] for message in history.messages]


def _exchange(
    database: SyncDatabase, recorder: Recorder, tenant: str, value: str, chance: random.Random
) -> None:
    """Read an item and replace it if it is as it was read."""
    from langgraph.store.base import PutOp

    from perdure.errors import PerdureError

    store = database.store(tenant=tenant)
    item = item_name(0, chance.randrange(2))
    get = recorder.note_call("get", (tenant, "compared", item))
    try:
        found = store.get(("compared",), item)
    except PerdureError as error:
        recorder.note_answer(get, UNKNOWN, error=type(error).__name__)
        return
    seen = None if found is None else found.value["value"]
    recorder.note_answer(get, OK, value=seen)
    time.sleep(chance.choice(_THOUGHT_S))
    exchange = recorder.note_call("exchange", (tenant, "compared", item), seen=seen, value=value)
    put = PutOp(("compared",), item, {"value": value})
    try:
        is_exchanged = store.put_if_unchanged([put], {item: None if found is None else found.value})
    except PerdureError as error:
        recorder.note_answer(exchange, UNKNOWN, error=type(error).__name__)
    else:
        recorder.note_answer(exchange, OK, is_exchanged=is_exchanged)
