"""The table itself: its definition, its creation, and the version of its layout."""

from __future__ import annotations

import shlex
import time
from contextlib import suppress
from typing import Any

from perdure.errors import BadUrl, MigrationRequired, PerdureError, Unavailable
from perdure.storage.dynamodb import items
from perdure.storage.dynamodb.client import Client, ConditionFailed, Malformed, redact_target, target_of
from perdure.storage.layout_version import other_version_error

SCHEMA_VERSION = 9
"""The version of the layout that this release reads and writes, and the first one."""

_LAYOUT = {"pk": {"B": b"\x00layout"}, "sk": {"B": b"\x00"}}
_EXPIRY = "x"
_READY_AFTER = 120.0
_ASK_EVERY = 0.25
_QUICKLY = 2.0


def _make_key_schema(partition: str, sort: str) -> list[dict[str, str]]:
    return [
        {"AttributeName": partition, "KeyType": "HASH"},
        {"AttributeName": sort, "KeyType": "RANGE"},
    ]


DEFINITION: dict[str, Any] = {
    "BillingMode": "PAY_PER_REQUEST",
    "AttributeDefinitions": [
        {"AttributeName": name, "AttributeType": "B"} for name in ("pk", "sk", "o", "g", "h")
    ],
    "KeySchema": _make_key_schema("pk", "sk"),
    "LocalSecondaryIndexes": [
        {
            "IndexName": items.BY_ORDER,
            "KeySchema": _make_key_schema("pk", "o"),
            "Projection": {"ProjectionType": "ALL"},
        }
    ],
    "GlobalSecondaryIndexes": [
        {
            "IndexName": items.FIND,
            "KeySchema": _make_key_schema("g", "h"),
            "Projection": {"ProjectionType": "INCLUDE", "NonKeyAttributes": list(items.INDEXED)},
        }
    ],
}
"""The parameters of ``CreateTable``. An index for ordered reads can only be created with the table."""


def connect(url: str) -> Client:
    """Return a client whose table has this release's layout; raise ``MigrationRequired`` otherwise."""
    client = Client(target_of(url))
    found = version(client)
    if found != SCHEMA_VERSION:
        raise unfit_error(client, found)
    return client


def unfit_error(client: Client, found: int) -> MigrationRequired:
    command = f"perdure migrate --db {shlex.quote(redact_target(client.target))}"
    if found:
        return other_version_error(str(client.target), found, SCHEMA_VERSION, SCHEMA_VERSION, command)
    return MigrationRequired(
        f"{client.target} is not there or holds no Perdure layout; check the name and the region, or run "
        f"`{command}`, or connect with migrate=True"
    )


def version(client: Client) -> int:
    """Return the layout's version, 0 when there is no table or no layout in it."""
    try:
        answer = client.call(
            "get_item", patience=_QUICKLY, TableName=client.table, Key=_LAYOUT, ConsistentRead=True
        )
    except MigrationRequired:
        return 0
    except Malformed:
        if (table := _describe(client)) is not None:
            _check(client, table)
        raise
    if "Item" in answer:
        return int(answer["Item"]["version"]["N"])
    return 0


def ask(client: Client) -> None:
    """Make the cheapest request, one read unit, to get the date of its answer."""
    client.call("get_item", TableName=client.table, Key=_LAYOUT, ConsistentRead=True)


def count_bytes(client: Client) -> int:
    """Return the size of the table and its global index, as AWS last counted it: every six hours or so."""
    table = _describe(client) or {}
    parts = [table, *table.get("GlobalSecondaryIndexes", ())]
    return sum(int(part.get(name) or 0) for part in parts for name in ("TableSizeBytes", "IndexSizeBytes"))


def plan_migration(client: Client) -> list[str]:
    """Return the steps that ``migrate`` would execute, in words."""
    table = _describe(client)
    steps: list[str] = []
    found = 0
    if table is None:
        steps.append(
            f"create the table {client.table} (on demand; keys pk and sk; local index {items.BY_ORDER}; "
            f"global index {items.FIND})"
        )
    else:
        _check(client, table)
        found = version(client)
    if table is None or not _has_expiry(client):
        steps.append(f"let items of {client.table} expire by the attribute {_EXPIRY} (time to live)")
    if found not in (0, SCHEMA_VERSION):
        raise unfit_error(client, found)
    if found < SCHEMA_VERSION:
        steps.append(f"record layout version {SCHEMA_VERSION} in {client.table}")
    return steps


def migrate(client: Client) -> int:
    """Create the table or check it, also while other processes do the same; return the version that its
    layout had."""
    found = version(client)
    if found not in (0, SCHEMA_VERSION):
        raise unfit_error(client, found)
    if found == SCHEMA_VERSION:
        # A table that was restored from a backup has lost its time-to-live setting.
        _set_expiry(client)
        return found
    if _describe(client) is None:
        # Another process may be creating it; both wait below.
        with suppress(ConditionFailed):
            client.call("create_table", TableName=client.table, **DEFINITION)
    _check(client, _await_active(client))
    _set_expiry(client)
    try:
        client.call(
            "put_item",
            TableName=client.table,
            Item={**_LAYOUT, "version": {"N": str(SCHEMA_VERSION)}},
            ConditionExpression=f"{items.ABSENT} OR #version = :mine",
            ExpressionAttributeNames={"#version": "version"},
            ExpressionAttributeValues={":mine": {"N": str(SCHEMA_VERSION)}},
        )
    except ConditionFailed:
        raise unfit_error(client, version(client)) from None
    return found


def _describe(client: Client) -> dict[str, Any] | None:
    try:
        answer = client.call("describe_table", patience=_QUICKLY, TableName=client.table)
    except MigrationRequired:
        return None
    return dict(answer["Table"])


def _await_active(client: Client) -> dict[str, Any]:
    """Return the table's description as soon as it accepts requests."""
    end = time.monotonic() + _READY_AFTER
    while True:
        table = _describe(client)
        if table is not None and table["TableStatus"] in ("ACTIVE", "UPDATING"):
            return table
        if time.monotonic() > end:
            state = "does not appear"
            if table is not None:
                state = f"stays {table['TableStatus']}"
            raise Unavailable(
                f"{client.target} {state} for {_READY_AFTER:.0f} s; look at it in the AWS console"
            )
        time.sleep(_ASK_EVERY)


def _check(client: Client, table: dict[str, Any]) -> None:
    """Raise ``BadUrl`` if the table's definition differs from ``DEFINITION``."""
    types = {a["AttributeName"]: a["AttributeType"] for a in table["AttributeDefinitions"]}
    comparisons = {
        "its keys": (table["KeySchema"], DEFINITION["KeySchema"]),
        f"the local index {items.BY_ORDER}": _find_index_keys(table, "LocalSecondaryIndexes"),
        f"the global index {items.FIND}": _find_index_keys(table, "GlobalSecondaryIndexes"),
    }
    wrong = [part for part, (given, wanted) in comparisons.items() if _flatten(given) != _flatten(wanted)]
    wanted_types = {a["AttributeName"]: a["AttributeType"] for a in DEFINITION["AttributeDefinitions"]}
    if not wrong and any(types.get(name) != type_ for name, type_ in wanted_types.items()):
        wrong.append("the types of its keys")
    if wrong:
        raise BadUrl(
            f"{client.target} was not made by perdure: {', '.join(wrong)} differ from what is needed; name "
            "another table, and perdure migrate creates it"
        )


def _find_index_keys(table: dict[str, Any], sort: str) -> tuple[Any, Any]:
    wanted = DEFINITION[sort][0]
    given = next((i for i in table.get(sort) or () if i["IndexName"] == wanted["IndexName"]), None)
    return (given and given["KeySchema"]), wanted["KeySchema"]


def _flatten(schema: Any) -> list[tuple[str, str]]:
    return sorted((part["KeyType"], part["AttributeName"]) for part in schema or ())


def _has_expiry(client: Client) -> bool:
    answer = client.call("describe_time_to_live", TableName=client.table)["TimeToLiveDescription"]
    return answer.get("TimeToLiveStatus") in ("ENABLED", "ENABLING")


def _set_expiry(client: Client) -> None:
    if _has_expiry(client):
        return
    try:
        client.call(
            "update_time_to_live",
            TableName=client.table,
            TimeToLiveSpecification={"Enabled": True, "AttributeName": _EXPIRY},
        )
    except PerdureError:
        # The request is also refused if another process was first.
        if not _has_expiry(client):
            raise
