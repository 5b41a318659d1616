"""The tree check finds what it is for, names file and line, and passes a clean tree."""

import subprocess
import sys
from pathlib import Path

import pytest

CHECK = Path(__file__).resolve().parent.parent / "tools" / "check_tree.py"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "check_tree.py").write_bytes(CHECK.read_bytes())
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    return tmp_path


def check(tree: Path) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "tools/check_tree.py"], cwd=tree, capture_output=True, text=True, check=False
    )
    assert not done.stderr
    return done.returncode, done.stdout


def test_a_clean_tree_passes(tree: Path) -> None:
    (tree / "a.py").write_text("x = 1\n" * 600)
    (tree / "picture.png").write_bytes(b"\x89PNG\xff\xfe")
    assert check(tree) == (0, "3 files, 0 findings\n")


@pytest.mark.parametrize(
    ("name", "text", "where"),
    [
        ("long.py", "x = 1\n" * 601, "long.py:601: 601 lines"),
        ("notes.md", "fine\nsee /home" + "/ada/notes\n", "notes.md:2: a path of one machine"),
        ("pins.txt", "--index https://pypi" + ".org/simple\n", "pins.txt:1: the host of a package registry"),
        (
            "words.py",
            "# A page that i" + "s no page.\n",
            "words.py:1: 'i" + "s no page'; write 'is not a page'",
        ),
        ("uv.lock", "version = 1\n", "uv.lock:1: a lock file in git"),
    ],
)
def test_a_trace_is_named_by_file_and_line(tree: Path, name: str, text: str, where: str) -> None:
    (tree / name).write_text(text)
    status, output = check(tree)
    assert status == 1
    assert where in output


def test_plain_ways_of_saying_no_pass(tree: Path) -> None:
    """Also where a line is broken behind its first word."""
    words = "There is no file.\nIt is no longer read, as it is no more than that. There\nis no other.\n"
    (tree / "notes.md").write_text(words)
    assert check(tree) == (0, "2 files, 0 findings\n")


def test_what_git_ignores_is_left_alone(tree: Path) -> None:
    (tree / ".gitignore").write_text("uv.lock\n")
    (tree / "uv.lock").write_text("version = 1\n")
    assert check(tree)[0] == 0


@pytest.mark.parametrize(
    "name", ["stored", "_given", "asettled", "listening", "written_to", "kept_for_next", "_made_sync"]
)
@pytest.mark.parametrize("folder", ["src", "tools", "bench"])
def test_a_function_named_by_a_participle_is_found(tree: Path, folder: str, name: str) -> None:
    (tree / folder).mkdir(exist_ok=True)
    (tree / folder / "a.py").write_text(f"class A:\n    async def {name}(self): ...\n")
    status, output = check(tree)
    assert status == 1
    assert (
        f"{folder}/a.py:2: the function {name!r} is named by a participle; name it by a verb (load, "
        in output
    )


@pytest.mark.parametrize("name", ["put_off", "_ring", "settle", "take_back"])
def test_an_old_word_for_a_standard_term_is_found(tree: Path, name: str) -> None:
    (tree / "src").mkdir()
    (tree / "src" / "a.py").write_text(f"\ndef {name}(): ...\n")
    assert f"src/a.py:2: the function {name!r}; the field's term is " in check(tree)[1]


def test_verbs_nouns_and_answers_pass(tree: Path) -> None:
    """Also values that a participle describes, local names, and names that tests have."""
    names = [
        "load",
        "note_write",
        "is_stored",
        "stored_bytes",
        "made_at",
        "embed",
        "aembed",
        "read_asked",
        "everything",
    ]
    (tree / "src").mkdir()
    (tree / "src" / "a.py").write_text(
        "".join(f"def {name}():\n    held = given = 1\n" for name in [*names, "pending"])
    )
    (tree / "test_a.py").write_text("def stored(): ...\n")
    assert check(tree) == (0, "3 files, 0 findings\n")
