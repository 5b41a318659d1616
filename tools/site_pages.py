"""Hook of mkdocs: the changelog is a page of the site, with its links as they are from there."""

from __future__ import annotations

from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

CHANGELOG = Path(__file__).resolve().parents[1] / "CHANGELOG.md"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the page to those of the folder."""
    text = CHANGELOG.read_text(encoding="utf-8").replace("](docs/", "](")
    files.append(File.generated(config, "changelog.md", content=text))
    return files
