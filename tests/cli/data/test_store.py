"""The commands on the store, as a shell sees them."""

from __future__ import annotations

import json
from pathlib import Path

import perdure
from perdure.langgraph.search.index import SearchIndex
from perdure.testing.conformance.meaning import embed
from tests.cli.test_commands import Shell, shell

__all__ = ["shell"]

SETTINGS = """\
[store.index]
dims = 16
embed = "./embedding.py:embed"
fields = ["text"]
name = "pairs"
"""


def test_what_is_stored_already_is_indexed_once(shell: Shell, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 't.db'}"
    with perdure.connect_sync(url, migrate=True) as db:
        for n in range(3):
            db.store().put(("users", f"u{n}"), "k", {"text": f"tea {n}"})
        db.store(tenant="other").put(("users", "u9"), "k", {"text": "tea"})
    refused = shell("store", "reindex", "--db", url)
    assert (refused.returncode, "store.index" in refused.stderr) == (1, True)
    config = tmp_path / "mine.toml"
    config.write_text(SETTINGS)
    (tmp_path / "embedding.py").write_text("from perdure.testing.conformance.meaning import embed\n")
    arguments = ("store", "reindex", "--config", str(config), "--db", url)
    narrow = shell(*arguments, "--namespace", "users", "--namespace", "u1")
    assert "1 item in 1 namespace: 1 indexed" in narrow.stdout
    assert "3 items in 3 namespaces: 2 indexed" in shell(*arguments).stdout
    every = json.loads(shell(*arguments, "--all-tenants", "--json").stdout)
    assert every == {
        "namespaces": 4,
        "items": 4,
        "indexed": 1,
        "changed": 0,
        "removed": 0,
        "vectors_made_anew": 0,
        "method": "vectors in this process",
    }
    with perdure.connect_sync(url) as db:
        index = SearchIndex({"dims": 16, "embed": embed, "fields": ["text"], "name": "pairs"})
        found = db.store(index=index).search(("users",), query="tea 2", limit=1)
        assert found[0].namespace == ("users", "u2")
