"""Many processes meet one new file at the same instant."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

import perdure
from perdure.storage.sql.schema import SCHEMA_VERSION
from perdure.storage.url import backend_of

PROCESSES = 30

pytestmark = pytest.mark.timeout(300)

# Forks clients that have never opened the file, and lets them all go at once. A process for each from the
# start would spread their first calls over the seconds that the imports take.
CLIENTS = """
import os, sys, traceback
from perdure.model.ops import Commit, Fetch, Get, Put
from perdure.model.records import GC, Partition
from perdure.storage.url import open_driver
url, count = sys.argv[1], int(sys.argv[2])
gate, opener = os.pipe()

def client(at):
    os.close(opener)
    os.read(gate, 1)
    driver = open_driver(url, migrate=True)
    partition = Partition("", f"thread-{at}")
    driver.perform(Commit(partition, (Put(GC, (), version=1),)))
    ((record,),) = driver.perform(Fetch(partition, (Get(GC, ()),)))
    assert record.version == 1
    driver.close()

children = []
for at in range(count):
    child = os.fork()
    if child == 0:
        code = 1
        try:
            client(at)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    children.append(child)
os.close(opener)
print([os.waitpid(child, 0)[1] for child in children])
"""


@pytest.mark.parametrize("attempt", range(3))
def test_thirty_processes_migrate_one_new_file_at_once(tmp_path: Path, attempt: int) -> None:
    path = tmp_path / "threads.db"
    done = subprocess.run(
        [sys.executable, "-c", CLIENTS, f"sqlite:///{path}", str(PROCESSES)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.stdout.strip(), done.stderr) == (str([0] * PROCESSES), "")
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT count(*) FROM perdure_thread").fetchone() == (PROCESSES,)
        assert connection.execute("SELECT version, one FROM perdure_schema").fetchall() == [
            (SCHEMA_VERSION, 1)
        ]
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


@pytest.mark.skipif(os.environ.get("PERDURE_CHAOS") != "full", reason="30 cold starts; PERDURE_CHAOS=full")
def test_thirty_cold_processes_migrate_one_new_file(tmp_path: Path) -> None:
    path = tmp_path / "threads.db"
    command = [sys.executable, "-c", CLIENTS, f"sqlite:///{path}", "1"]
    processes = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(PROCESSES)
    ]
    ended = [process.communicate() for process in processes]
    assert ended == [("[0]\n", "")] * PROCESSES
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT count(*) FROM perdure_thread").fetchone() == (1,)


def test_a_file_that_was_not_migrated_is_refused_with_the_command(tmp_path: Path) -> None:
    path = tmp_path / "threads.db"
    url = f"sqlite:///{path}"
    with pytest.raises(perdure.BadUrl, match="perdure migrate"), perdure.connect_sync(url):
        pass
    assert not path.exists()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE mine (a)")
        connection.commit()
    with pytest.raises(perdure.MigrationRequired, match="perdure migrate"), perdure.connect_sync(url):
        pass
    assert backend_of(url).migrate(url) == 0
    with perdure.connect_sync(url) as database:
        assert database.fsck() == []


def test_a_file_of_a_newer_release_is_refused_and_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "threads.db"
    url = f"sqlite:///{path}"
    backend_of(url).migrate(url)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE perdure_schema SET version = 99")
        connection.commit()
    for migrate in (False, True):
        with (
            pytest.raises(perdure.MigrationRequired, match="upgrade perdure"),
            perdure.connect_sync(url, migrate=migrate),
        ):
            pass
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT version FROM perdure_schema").fetchone() == (99,)
