"""Refuses a file that another process may know by a second name in another place.

SQLite keeps a file's log beside it, under the file's name. A file with two hard links, or one that is mounted
by itself into a container, has two such places: processes that open it under different names do not see each
other's log, and overwrite each other's acknowledged commits; a container's log is gone with the container.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from perdure.errors import BadUrl

MOUNTS = Path("/proc/self/mountinfo")
"""Linux's table of the mounts that this process sees."""

_MOUNT_POINT = 4
_ESCAPED = re.compile(r"\\([0-7]{3})")


def refuse_other_names(url: str, path: Path, mounts: Path = MOUNTS) -> None:
    """Raise ``BadUrl`` if an existing file may be open under another name, with another log.

    Args:
        url: The database's URL, for the message.
        path: Its file. Symbolic links are followed, as SQLite does: the log lies beside their target.
        mounts: The table of mounts; where it cannot be read, only hard links are noticed.
    """
    try:
        links = os.stat(path).st_nlink
    except OSError:
        return
    if links > 1:
        raise BadUrl(
            f"{url}: {path} has {links} names (hard links). SQLite keeps a log beside each name, and commits "
            "in one log overwrite those in the other. Remove the other names, or open a copy. List them "
            f"with: find / -xdev -samefile {path}"
        )
    if os.path.realpath(path) in _read_mount_points(mounts):
        raise BadUrl(
            f"{url}: {path} is mounted as a single file. Its log, {path.name}-wal, would be outside of the "
            "mount, where no other process sees it, and be lost with the container. Mount the directory of "
            "the file instead"
        )


def _read_mount_points(mounts: Path) -> set[str]:
    try:
        table = os.fsdecode(mounts.read_bytes())
    except OSError:
        return set()
    return {
        _ESCAPED.sub(lambda code: chr(int(code[1], 8)), fields[_MOUNT_POINT])
        for line in table.splitlines()
        if len(fields := line.split(" ")) > _MOUNT_POINT
    }
