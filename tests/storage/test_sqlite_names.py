"""A file that a second process may open under another name is refused: its commits would be overwritten."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import perdure
from perdure.errors import BadUrl
from perdure.storage.sqlite import driver as sqlite
from perdure.storage.sqlite.second_names import refuse_other_names

_OPENED = "import sys, perdure\nwith perdure.connect_sync(sys.argv[1]) as db: print(list(db.threads()))"
_ROW = "36 25 0:32 /data/threads.db {} rw,relatime shared:1 - ext4 /dev/sda1 rw\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "threads.db"
    sqlite.migrate(f"sqlite:///{path}")
    return path


@pytest.mark.parametrize("migrate", [False, True])
def test_a_file_with_a_second_hard_link_is_not_opened_under_either_name(path: Path, migrate: bool) -> None:
    other = path.parent / "other"
    other.mkdir()
    with perdure.connect_sync(f"sqlite:///{path}"):
        os.link(path, other / "t.db")
        for name in (other / "t.db", path):
            with (
                pytest.raises(BadUrl, match="has 2 names"),
                perdure.connect_sync(f"sqlite:///{name}", migrate=migrate),
            ):
                pass
    with pytest.raises(BadUrl, match="has 2 names"):
        sqlite.open_read_only(f"sqlite:///{path}")
    (other / "t.db").unlink()
    with perdure.connect_sync(f"sqlite:///{path}") as db:
        assert list(db.threads()) == []


def test_a_symbolic_link_is_no_second_name(path: Path) -> None:
    link = path.parent / "link.db"
    link.symlink_to(path)
    with perdure.connect_sync(f"sqlite:///{link}") as one, perdure.connect_sync(f"sqlite:///{path}") as two:
        one.store().put(("a",), "key", {"n": 1})
        item = two.store().get(("a",), "key")
    assert item is not None
    assert item.value == {"n": 1}


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("a%FF.db", "rename the file"),  # decoded loosely it would be one file with a%FE.db
        ("a\udcff.db", "rename the file"),  # a byte of the command line that is not UTF-8
        ("a%00.db", "remove it"),
        ("a#b/threads.db", "%23"),
        ("a?b/threads.db", "%3F"),
    ],
)
def test_a_path_that_a_url_cannot_name_is_refused_with_the_remedy(
    tmp_path: Path, name: str, remedy: str
) -> None:
    with (
        pytest.raises(BadUrl, match=remedy),
        perdure.connect_sync(f"sqlite:///{tmp_path}/{name}", migrate=True),
    ):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_a_mount_is_refused_and_its_directory_is_not(tmp_path: Path) -> None:
    folder = tmp_path / "with space"
    folder.mkdir()
    path = folder / "threads.db"
    path.touch()
    mounts = tmp_path / "mountinfo"
    mounts.write_text(_ROW.format(str(folder).replace(" ", r"\040")))
    refuse_other_names("sqlite:///x", path, mounts)
    mounts.write_text("\n" + _ROW.format("/") + _ROW.format(str(path).replace(" ", r"\040")))
    with pytest.raises(BadUrl, match="mounted as a single file"):
        refuse_other_names("sqlite:///x", path, mounts)
    refuse_other_names("sqlite:///x", path, tmp_path / "no table")


def test_a_file_that_was_mounted_by_itself_is_not_opened(path: Path) -> None:
    """In a mount namespace of its own, as a container has one."""
    unshare = shutil.which("unshare")
    mount = path.parent / "app" / "threads.db"
    mount.parent.mkdir()
    mount.touch()
    script = 'mount --bind "$1" "$2" && exec "$3" -c "$4" "sqlite:///$2"'
    namespace = [unshare or "unshare", "--user", "--map-root-user", "--mount"]
    if unshare is None or subprocess.run([*namespace, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this system allows no mount namespace without privileges")
    command = [*namespace, "sh", "-c", script, "sh", str(path), str(mount), sys.executable, _OPENED]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert ended.returncode == 1
    assert "threads.db is mounted as a single file" in ended.stderr
    assert sorted(each.name for each in mount.parent.iterdir()) == ["threads.db"]


@pytest.mark.parametrize("call", ["migrate", "open_driver", "open_read_only", "schema_version"])
def test_a_relative_path_in_a_directory_that_was_removed_is_refused(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(BadUrl, match="the working directory, which was removed"):
        getattr(sqlite, call)("sqlite:///threads.db")
    assert sqlite.migrate(f"sqlite:///{tmp_path}/threads.db") == 0


@pytest.mark.parametrize("call", ["migrate", "open_driver", "open_read_only", "schema_version"])
def test_a_path_that_is_no_file_is_refused_without_waiting_for_a_writer(call: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "threads.db")
    with pytest.raises(BadUrl, match="a FIFO; name a file"):
        getattr(sqlite, call)(f"sqlite:///{tmp_path}/threads.db")
