"""Checks of the tree that no linter knows: file length, words, names, and traces of the machine of an author.

Looks at the files git tracks or would add. Prints one line a finding, `path:line: what; mend`, and exits 1.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

MAX_LINES = 600
SOURCE = {".css", ".html", ".js", ".mjs", ".py", ".sh", ".sql", ".ts"}

# Written so that no pattern finds itself.
TRACES = [
    (
        re.compile(r"/(?:wor[k]|roo[t]|hom[e]/\w+|User[s]/\w+)/[\w.]"),
        "a path of one machine",
        "use a path relative to the repository, or a temporary directory",
    ),
    (
        re.compile(
            r"\bpypi[.](?:org|python)|pythonhosted[.]org|registry[.]npmjs|registry[.]yarnpkg|deb[.]debian[.]org"
        ),
        "the host of a package registry",
        "drop it: the reader's own package client knows where to look",
    ),
]
WORDS = re.compile(
    # "There is no X" is plain English, and so are these: their "no" goes with a comparison or a measure.
    r"(?<=\S )(?<!here )\bi[s] no "
    r"(?!longer|more|less|other|such|need|one|better|new|further|room|way|matter)\b\w+"
)
"""Ways of saying things that a reader stumbles over."""

NAMED = {"bench", "src", "tools"}
"""Folders whose functions are named by verbs: ``load`` and not ``loaded``."""
PARTICIPLE = re.compile(
    r"(?!(?:\w*thing|a?embed|bring|exceed|feed|mapping|need|ping|ring|seed|setting|string|succeed)$)"
    r"(?:\w+(?:ed|ing)|begun|bound|built|chosen|done|drawn|driven|forgotten|found|frozen|given|gone|heard|held"
    r"|hidden|kept|known|left|lost|made|meant|met|overtaken|seen|sent|shown|spent|spoken|stuck|swept|taken"
    r"|thought|told|understood|withdrawn|woken|written)"
)
LINKS = set(
    "after again anew aside away back before beside by first for from here in inside into last next now of"
    " on otherwise out over since sync to together under until up with within without".split()
)
"""Before one of these a participle stands where a verb belongs; before a noun it describes a value."""
PARTICIPLES = {
    "pending": "what a queue has not taken yet, as everybody calls it",
    "stuck": "the command of this name",
}
"""Names that are participles, and why each may stay."""
OLD_WORDS = {"put_off": "postpone", "ring": "notify", "settle": "resolve", "take_back": "roll_back"}
"""Words of this house for what the field has a term for."""

# They record the hosts that packages came from.
LOCK_FILES = {"poetry.lock", "pylock.toml", "uv.lock"}


def list_files(root: Path) -> list[Path]:
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout
    return sorted(root / name for name in names.split("\0") if name and (root / name).is_file())


def find_misnamed(text: str) -> Iterator[tuple[int, str, str]]:
    """Functions whose name is not a verb but a participle, or an old word for a standard term."""
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        name = node.name.strip("_")
        first, *rest = name.split("_")
        if name in OLD_WORDS:
            yield node.lineno, f"the function {node.name!r}", f"the field's term is {OLD_WORDS[name]!r}"
        elif name not in PARTICIPLES and PARTICIPLE.fullmatch(first) and (not rest or rest[0] in LINKS):
            mend = "name it by a verb (load, note_write), a value by a noun, a yes or no by is_… or has_…"
            yield node.lineno, f"the function {node.name!r} is named by a participle", mend


def findings(path: Path, folder: str) -> Iterator[tuple[int, str, str]]:
    """Line, what is wrong, how to mend it. A file that is not UTF-8 text is data and has no lines."""
    if path.name in LOCK_FILES:
        yield 1, "a lock file in git", "remove it; the pins stand in pyproject.toml"
        return
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        return
    if path.suffix in SOURCE and len(lines) > MAX_LINES and "vendor" not in path.parts:
        yield MAX_LINES + 1, f"{len(lines)} lines, more than {MAX_LINES}", "split it by what its parts decide"
    for number, line in enumerate(lines, start=1):
        for pattern, what, mend in TRACES:
            if found := pattern.search(line):
                yield number, f"{what} ({found.group()})", mend
        if path.suffix in {".md", ".py"} and (found := WORDS.search(line)):
            yield number, f"{found.group()!r}", f"write {found.group().replace('no', 'not a', 1)!r}"
    if path.suffix == ".py" and folder in NAMED:
        yield from find_misnamed("\n".join(lines))


def main(root: Path) -> int:
    paths = list_files(root)
    count = 0
    for path in paths:
        for line, what, mend in findings(path, path.relative_to(root).parts[0]):
            print(f"{path.relative_to(root)}:{line}: {what}; {mend}")
            count += 1
    print(f"{len(paths)} files, {count} findings")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main(Path(__file__).resolve().parent.parent))
