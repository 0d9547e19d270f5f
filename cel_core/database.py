"""One DuckDB file, taken in turns: opened briefly, brought to the current schema, asked in short transactions.

DuckDB gives one process a file for as long as a connection to it is open. So every transaction opens, acts and closes, and a
file that another process holds is tried again. This module alone imports duckdb.
"""

import contextlib
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import duckdb

from cel_core.errors import StoreError
from cel_core.migrations import STEPS

Connection = duckdb.DuckDBPyConnection


class Database:
    """A handle on one file; it holds no connection between calls and may be used from any thread."""

    def __init__(self, path: Path, patience_s: float) -> None:
        """Open a file, making or migrating it where needed.

        Args:
            path: the DuckDB file.
            patience_s: how long to wait for a file that another process holds.

        Raises:
            StoreError: it cannot be opened or written, or a newer version of this program wrote it.
        """
        self.path = path
        self.patience_s = patience_s
        self._thread = threading.local()
        if not self.path.parent.is_dir():
            raise StoreError(f"store '{self.path}': its folder does not exist; make it, or give another --store")
        with self.transaction() as database:
            database.execute("CREATE TABLE IF NOT EXISTS schema_version (version INTEGER NOT NULL)")
            version = database.execute("SELECT coalesce(max(version), 0) FROM schema_version").fetchall()[0][0]
            if version > len(STEPS):
                raise StoreError(
                    f"store '{self.path}' was written by a newer version (schema {version}, this one knows {len(STEPS)}): "
                    "update this program, or give another --store"
                )
            for number, step in enumerate(STEPS[version:], start=version + 1):
                database.execute(step)
                database.execute("INSERT INTO schema_version VALUES (?)", [number])

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Inside, this thread's calls share one opening of the file: for a page that asks much at once, briefly."""
        if getattr(self._thread, "file", None) is not None:
            yield
            return
        self._thread.file = self._open()
        try:
            yield
        finally:
            file, self._thread.file = self._thread.file, None
            try:
                _DUCKDB.close(file)
            except duckdb.Error as error:
                raise self._unusable(error) from error

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Connection]:
        """One short transaction; an exception inside rolls it back.

        Raises:
            StoreError: the file cannot be used.
        """
        try:
            with self.together(), _DUCKDB.cursor(self._thread.file) as database:
                database.begin()
                yield database
                database.commit()
        except duckdb.Error as error:
            raise self._unusable(error) from error

    def _unusable(self, error: duckdb.Error) -> StoreError:
        if "Conflict" in str(error):
            return StoreError("somebody else changed the same just now: look again, and repeat it where it is still wanted")
        return StoreError(f"store '{self.path}' cannot be used ({_first_line(error)}): check the disk and the file")

    def _open(self) -> Path:
        """Open the file, once no other process holds it; the name by which to ask for cursors and to close it."""
        file, deadline = self.path.resolve(), time.monotonic() + self.patience_s
        while True:
            try:
                _DUCKDB.open(file)
                return file
            except duckdb.Error as error:
                if "Could not set lock" not in str(error):
                    raise StoreError(
                        f"store '{self.path}' cannot be opened ({_first_line(error)}): give a writable path with --store"
                    ) from error
                if time.monotonic() > deadline:
                    raise StoreError(
                        f"store '{self.path}' has been held by another process for {self.patience_s:.0f} s: close that one, or "
                        "give another --store"
                    ) from error
            time.sleep(random.uniform(0.005, 0.03))


class _Duckdb:
    """DuckDB as this process runs it: started once, empty, with stores' files attached for as long as somebody uses them.

    To start it takes ten times as long as to open a file, and a file can be open only once in a process: so all threads and
    all handles share what is open.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._started: Connection | None = None
        self._users: dict[Path, int] = {}  # of each open file
        self._names: dict[Path, str] = {}  # under which it is attached

    def open(self, file: Path) -> None:
        """Attach a file, made where it is not there, unless somebody in this process has it open already.

        Raises:
            duckdb.Error: it cannot be opened, or another process holds it.
        """
        with self._lock:
            if self._started is None:
                # one thread: what is asked is small, and to share it out among threads costs more than it saves
                self._started = duckdb.connect(":memory:", config={"threads": 1})
            name = self._names.setdefault(file, f"store_{len(self._names)}")
            if file not in self._users:
                quoted = str(file).replace("'", "''")
                self._started.execute(f"ATTACH IF NOT EXISTS '{quoted}' AS {name}")
            self._users[file] = self._users.get(file, 0) + 1

    def cursor(self, file: Path) -> Connection:
        """A connection of its own to an open file."""
        with self._lock:
            assert self._started is not None
            cursor = self._started.cursor()
        cursor.execute(f"USE {self._names[file]}")
        return cursor

    def close(self, file: Path) -> None:
        """Say that a file is not used any more; the last one lets go of it."""
        with self._lock:
            assert self._started is not None
            self._users[file] -= 1
            if not self._users[file]:
                del self._users[file]
                self._started.execute(f"DETACH {self._names[file]}")


_DUCKDB = _Duckdb()


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0][:160].rstrip(".:")
