"""Commands on the store: indexing of items that are stored already."""

from __future__ import annotations

import os
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from perdure.cli.app import (
    AsJson,
    DataPlace,
    err,
    format_count,
    handle_in,
    new_group,
    open_database,
    print_json,
    quote_id,
    say,
)
from perdure.errors import BadSetting

if TYPE_CHECKING:
    from perdure.langgraph.search.index import SearchIndex

store = new_group("store", "Maintain the store: what agents know beside their threads.")


@store.command()
def reindex(
    config: Annotated[
        Path | None,
        typer.Option("--config", help="The only settings file to read; by default those of this folder"),
    ] = None,
    *,
    namespace: Annotated[
        list[str] | None,
        typer.Option(help="A label of the namespace within which to index; repeat it for a longer one"),
    ] = None,
    all_tenants: Annotated[bool, typer.Option("--all-tenants", help="The items of all tenants")] = False,
    place: DataPlace,
    as_json: AsJson = False,
) -> None:
    """Embed the items that the store's index does not know, or knows from another embedding model.

    The index is that of store.index in perdure.toml or langgraph.json. Items can be
    read and written meanwhile. Safe to interrupt: the next run passes over what is done. On PostgreSQL with
    pgvector it also creates the HNSW index, by which many items are searched quickly.
    """
    from perdure.engine.items.items import read_namespaces
    from perdure.langgraph.search.reindex import Reindexed
    from perdure.langgraph.search.reindex import reindex as indexing
    from perdure.model.store_items import labels_of

    place = place.with_key()
    url, index = _load_settings(config, place.db, place.keys is not None)
    total, places = Reindexed(), 0
    with open_database(replace(place, db=url)) as database, closing(index):
        handle = handle_in(database)
        found = handle.run(read_namespaces(None if all_tenants else place.tenant, tuple(namespace or ())))
        for partition in found:
            shown = escape("/".join(map(quote_id, labels_of(partition.thread))))
            with err.status(f"{shown}: reading") as status:

                def report(done: Reindexed, shown: str = shown) -> None:
                    status.update(f"{shown}: {done.items} items read, {done.indexed} indexed")

                done = handle.run(indexing(partition, index, time.time_ns() // 1000, report))
            total = total.plus(done)
            places += done.items > 0
        with err.status("Preparing the database's own index of vectors"):
            remade = index.prepare(handle.driver)
        method = index.method(handle.driver)
    if as_json:
        print_json({"namespaces": places, **total._asdict(), "vectors_made_anew": remade, "method": method})
        return
    say(
        f"{format_count(total.items, 'item')} in {format_count(places, 'namespace')}: "
        f"{total.indexed} indexed, {total.changed} written meanwhile by others, "
        f"{total.removed} entries without an item removed"
    )
    if remade:
        say(f"{remade} items whose vectors were not those of their entries: made anew")
    say(f"searches compare {method}")


def _load_settings(config: Path | None, db: str | None, has_key: bool) -> tuple[str, SearchIndex]:
    from perdure.config.resolve import add_import_folders, resolve_config, set_variables

    configuration = resolve_config(
        file=config, flags={"database_url": (db, "--db")}, environ=os.environ, has_key=has_key
    )
    chosen = configuration.store_index()
    if chosen is None:
        raise BadSetting(
            "which index? Write store.index in perdure.toml or langgraph.json, e.g.\n"
            '[store.index]\ndims = 1536\nembed = "openai:text-embedding-3-small"\n'
            "or, to compare words without a model,\n[store.index]\ntext = true"
        )
    set_variables(configuration.env)
    add_import_folders(configuration.import_folders())
    return configuration.database_url(), chosen.load(configuration.root)
