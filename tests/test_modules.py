"""Each module of ``src`` has its tests."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Container, Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"

TESTED_BY = {
    "perdure.channels.sessions": "channels/test_telegram.py",
    "perdure.channels.telegram_updates": "channels/test_telegram.py",
    "perdure.channels.webhook": "channels/test_telegram.py",
    "perdure.channels.whatsapp_updates": "channels/test_whatsapp.py",
    "perdure.audit.declarations": "audit/test_examine.py",
    "perdure.audit.interrupts": "audit/test_examine.py",
    "perdure.audit.reducers": "audit/test_examine.py",
    "perdure.audit.storage": "audit/test_examine.py",
    "perdure.audit.subgraphs": "audit/test_examine.py",
    "perdure.audit.updates": "audit/test_examine.py",
    "perdure.admin.moving": "engine/test_transfer.py",
    "perdure.admin.whole_check": "storage/test_sqlite_damage.py",
    "perdure.cli.export_import": "cli/test_moving.py",
    "perdure.cli.copy": "cli/test_moving.py",
    "perdure.cli.database": "cli/test_commands.py",
    "perdure.cli.demo": "demo/test_process.py",
    "perdure.cli.logs": "cli/test_worker.py",
    "perdure.cli.serve": "server/test_supervisor.py",
    "perdure.cli.signals": "cli/test_worker.py",
    "perdure.cli.threads": "cli/test_commands.py",
    "perdure.cli.worker_process": "cli/test_worker.py",
    "perdure.database.asynchronous": "database/test_database.py",
    "perdure.database.thread_entries": "database/test_database.py",
    "perdure.demo.__main__": "demo/test_process.py",
    "perdure.demo.once": "demo/test_process.py",
    "perdure.demo.serve": "demo/test_process.py",
    "perdure.engine.importing_items": "imports/test_items.py",
    "perdure.imports.expected": "imports/test_sqlite.py",
    "perdure.imports.verify": "imports/test_sqlite.py",
    "perdure.engine.content": "engine/test_transfer.py",
    "perdure.engine.removal": "server/test_sweeper.py",
    "perdure.engine.tags": "langgraph/test_contract.py",
    "perdure.engine.values": "langgraph/test_contract.py",
    "perdure.engine.scan": "engine/test_fsck.py",
    "perdure.server.memories": "server/test_memory_routes.py",
    "perdure.storage.sqlite.faults": "storage/test_sqlite_faults.py",
    "perdure.server.origins": "server/test_protocol_socket.py",
    "perdure.server.thread_events": "server/test_thread_stream.py",
    "perdure.server.passing_threads": "server/test_crons.py",
    "perdure.server.routes.crons": "server/test_crons.py",
    "perdure.inspector.listen": "cli/test_inspect.py",
    "perdure.inspector.serve": "cli/test_inspect.py",
    "perdure.inspector.states": "inspector/test_api.py",
    "perdure.inspector.timeline": "inspector/test_api.py",
    "perdure.inspector.work": "server/test_inspector.py",
    "perdure.langgraph.cache.decoding": "langgraph/test_handing_out.py",
    "perdure.langgraph.checkpoint_ids": "engine/test_forking.py",
    "perdure.langgraph.object_building": "langgraph/test_serde.py",
    "perdure.config.value_kinds": "server/test_config.py",
    "perdure.langgraph.object_packing": "langgraph/test_serde.py",
    "perdure.langgraph.saver_programs": "langgraph/test_contract.py",
    "perdure.langgraph.delta_channels": "langgraph/test_schema_migration.py",
    "perdure.langgraph.schema_values": "langgraph/test_schema_migration.py",
    "perdure.langgraph.inspect": "cli/test_commands.py",
    "perdure.langgraph.value_errors": "langgraph/test_allowlist.py",
    "perdure.config.models": "config/test_agents.py",
    "perdure.runtime.control": "runtime/test_rollback.py",
    "perdure.runtime.documents": "server/test_assistant_routes.py",
    "perdure.runtime.interrupt_answers": "runtime/test_interrupts.py",
    "perdure.runtime.run_context": "server/acceptance/test_contexts.py",
    "perdure.runtime.graphs": "server/test_identity.py",
    "perdure.runtime.task_names": "runtime/test_effects.py",
    "perdure.runtime.queue_cache": "runtime/test_accepting.py",
    "perdure.runtime.events.outgoing": "runtime/events/test_publisher.py",
    "perdure.runtime.sizes": "runtime/test_observe_sizes.py",
    "perdure.runtime.users": "server/test_identity.py",
    "perdure.runtime.worker.worker": "runtime/worker/test_dispatch.py",
    "perdure.schema.changes": "schema/test_schema.py",
    "perdure.server.auth.data": "server/test_handlers.py",
    "perdure.server.checkpoints": "server/acceptance/test_checkpoints.py",
    "perdure.server.graph_schema": "server/test_assistant_routes.py",
    "perdure.server.hosting.embedding": "server/test_embedding.py",
    "perdure.server.hosting.supervisor": "server/test_supervisor.py",
    "perdure.server.hosting.lifespan": "server/test_lifespan.py",
    "perdure.server.hosting.loopback": "server/test_projects.py",
    "perdure.server.hosting.mounting": "server/test_projects.py",
    "perdure.server.snapshots": "server/acceptance/test_states.py",
    "perdure.server.thread_ids": "server/test_embedding.py",
    "perdure.server.routes.assistants": "server/test_assistant_routes.py",
    "perdure.server.routes.health": "server/test_health.py",
    "perdure.server.routes.mcp": "server/mcp/test_exchange.py",
    "perdure.server.routes.memory": "server/test_memory_routes.py",
    "perdure.server.routes.meta": "server/test_health.py",
    "perdure.server.routes.inspector": "server/test_inspector.py",
    "perdure.server.routes.protocol": "server/test_protocol.py",
    "perdure.server.routes.tags": "server/test_tags.py",
    "perdure.server.routes.runs": "server/acceptance/test_runs.py",
    "perdure.server.routes.states": "server/acceptance/test_states.py",
    "perdure.server.routes.storage": "server/test_storage.py",
    "perdure.server.routes.store": "server/test_store_routes.py",
    "perdure.server.routes.thread_stream": "server/test_thread_stream.py",
    "perdure.server.routes.threads": "server/acceptance/test_threads.py",
    "perdure.storage.dynamodb.find": "storage/test_dynamodb.py",
    "perdure.storage.dynamodb.reading": "storage/test_dynamodb_requests.py",
    "perdure.storage.dynamodb.writing": "storage/test_dynamodb_requests.py",
    "perdure.storage.redis.notify": "storage/test_notify.py",
    "perdure.storage.redis.errors": "storage/test_redis_faults.py",
    "perdure.storage.redis.find": "storage/test_redis.py",
    "perdure.storage.redis.requests": "storage/test_redis.py",
    "perdure.storage.redis.url": "storage/test_redis.py",
    "perdure.storage.d1.retry": "storage/test_d1_faults.py",
    "perdure.storage.sql.listing": "storage/test_query_plans.py",
    "perdure.storage.postgres.notify": "storage/test_notify.py",
    "perdure.storage.postgres.functions": "storage/test_postgres.py",
    "perdure.storage.sqlite.integrity": "storage/test_sqlite_damage.py",
    "perdure.testing.conformance": "mutants/test_mutants.py",
}
"""The test file of each module, or package, that no test file mirrors and no test imports: layers above it
are tested there. An entry for a module that needs none is a failure."""


def test_each_module_has_its_tests() -> None:
    untested = [
        module
        for module, path in modules().items()
        if defines(tree(path))
        and module not in imported()
        and not mirrored(module)
        and not covers(covered(), module)
    ]
    assert not untested, (
        f"no test mirrors or imports these, and no test file's docstring 'Covers' them: {untested}"
    )


def test_what_a_test_file_covers_is_there() -> None:
    absent = [(name, file) for name, file in covered().items() if name not in modules()]
    assert not absent, f"these files cover modules that are not there: {absent}"


def test_a_module_without_tests_is_found() -> None:
    assert "perdure.model.tree" in imported()
    assert "perdure.model.unheard_of" not in imported()
    assert not mirrored("perdure.model.unheard_of")
    assert mirrored("perdure.langgraph.allowlist")
    assert mirrored("perdure.server.routes.crons")
    assert mirrored("perdure.storage.sqlite.faults")
    assert covers(covered(), "perdure.testing.conformance.lineage")
    assert not covers(covered(), "perdure.testing.conformances")
    assert not covers(covered(), "perdure.model.unheard_of")


def test_a_docstring_names_the_modules_that_a_file_covers() -> None:
    text = '"""Of turns.\n\nCovers perdure.a.b, perdure.c_d,\nperdure.e.\n"""\n\nfrom perdure.x import y\n'
    assert names_covered(text) == ["perdure.a.b", "perdure.c_d", "perdure.e"]
    assert names_covered('"""Covers no module by name."""\n"""Covers perdure.x."""\n') == []


def mirrored(module: str) -> bool:
    """Whether a test file has a module's name, in the folder of the same name or, as `test_crons.py` or
    `test_routes_crons.py`, in one above it."""
    _, *folders, name = module.split(".")
    return any(
        ROOT.joinpath("tests", *folders[:depth], f"test_{stem}.py").is_file()
        for depth in range(len(folders) + 1)
        for stem in (name, "_".join([*folders[depth:], name]))
    )


def covers(names: Container[str], module: str) -> bool:
    """Whether a module, or a package that holds it, is among names."""
    parts = module.split(".")
    return any(".".join(parts[:length]) in names for length in range(2, len(parts) + 1))


@cache
def covered() -> dict[str, str]:
    """The modules that test files cover through the layers above, by their docstrings, each with its file."""
    return {name: str(path.relative_to(ROOT)) for path, text in files() for name in names_covered(text)}


def names_covered(text: str) -> list[str]:
    """The modules of a paragraph `Covers perdure.a, perdure.b.` in a file's docstring."""
    docstring = re.match(r'r?"""(.*?)"""', text, re.DOTALL)
    line = re.search(r"^Covers (perdure\.[\w.,\s]*)\.$", docstring[1] if docstring else "", re.MULTILINE)
    return re.findall(r"perdure[.\w]*\w", line[1]) if line else []


@cache
def modules() -> dict[str, Path]:
    """The files of the package's modules."""
    found = {}
    for path in sorted((SOURCE / "perdure").rglob("*.py")):
        name = ".".join(path.relative_to(SOURCE).with_suffix("").parts)
        found[name.removesuffix(".__init__")] = path
    return found


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def defines(of: ast.Module) -> bool:
    """Whether a module has functions or classes of its own."""
    return any(isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) for node in of.body)


@cache
def imported() -> frozenset[str]:
    """The modules that tests import, also by way of a package that exports their names."""
    found: set[str] = set()
    for _, text in files():
        for module, name in names_in(text):
            found.update(origins(module, name))
    return frozenset(found)


@cache
def files() -> tuple[tuple[Path, str], ...]:
    """The files of the tests, with their text."""
    found = []
    for folder, folders, names in os.walk(ROOT / "tests"):
        folders[:] = [name for name in folders if name != "node_modules"]
        found += [Path(folder, name) for name in names if name.endswith(".py")]
    return tuple((path, path.read_text(encoding="utf-8")) for path in sorted(found))


def names_in(text: str) -> Iterator[tuple[str, str]]:
    """Names that a file takes of the package's modules. To parse all files would take seconds."""
    for module, names in re.findall(r"^\s*from (perdure[\w.]*) import (\([^)]*\)|.*)", text, re.MULTILINE):
        yield from ((module, name) for name in re.findall(r"(?<!as )\b\w+", names))
    yield from ((module, "") for module in re.findall(r"^\s*import (perdure[\w.]*)", text, re.MULTILINE))
    yield from (("perdure", name) for name in re.findall(r"\bperdure\.(\w+)", text))


def origins(module: str, name: str) -> set[str]:
    """The module, and those through which it got a name."""
    found = {module}
    while (module, name) in exports() and exports()[module, name][0] not in found:
        module, name = exports()[module, name]
        found.add(module)
    return found | {f"{module}.{name}"}


@cache
def exports() -> dict[tuple[str, str], tuple[str, str]]:
    """Where each module of the package got the names that it imports."""
    return {
        (module, alias.asname or alias.name): (node.module, alias.name)
        for module, path in modules().items()
        for node in tree(path).body
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }
