"""Commands on the tenants of a database."""

from __future__ import annotations

import typer

from perdure.cli.app import (
    AsJson,
    DataPlace,
    Db,
    Keys,
    add_listing,
    new_group,
    open_database,
    out,
    print_json,
    quote_id,
)

tenants = new_group("tenants", "Look at the tenants of a database.")


def list_tenants(db: Db = None, keys: Keys = None, as_json: AsJson = False) -> None:
    """List the tenants, by name, each with its number of threads.

    Threads without a tenant are those of the tenant ''.
    """
    from perdure import admin

    with open_database(DataPlace(db, keys=keys)) as database:
        counts = admin.tenants(database)
    if as_json:
        for tenant, threads in counts.items():
            print_json({"tenant": tenant, "threads": threads})
        return
    if not counts:
        out.print("No tenants yet.")
        return
    typer.echo(f"{'threads':>9}  tenant")
    for tenant, threads in counts.items():
        typer.echo(f"{threads:>9,}  {quote_id(tenant) or repr('')}")


add_listing(tenants, list_tenants)
