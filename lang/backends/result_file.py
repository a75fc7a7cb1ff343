"""The file of `Cached`: an SQLite table from key to answer, written by a thread of its own."""

from __future__ import annotations

import logging
import sqlite3
import threading
from queue import SimpleQueue
from typing import Any

_log = logging.getLogger("ramet")

BUSY_SECONDS = 10.0  # for another process that writes
CLOSE_SECONDS = 10.0


class ResultFile:
    """Reads at once and writes behind: nobody who answers a request waits for the disk.

    Raises:
        OSError: the file cannot be opened, or is not an SQLite file.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._pending: dict[str, str] = {}
        self._queue: SimpleQueue[tuple[str, str] | None] = SimpleQueue()
        try:
            self._reader = self._open()
            self._reader.execute("PRAGMA journal_mode=WAL")
            self._reader.execute(
                "CREATE TABLE IF NOT EXISTS results (key TEXT PRIMARY KEY, answer TEXT NOT NULL)"
            )
            self._reader.commit()
        except sqlite3.Error as error:
            raise _unusable(path, error) from error
        self._is_closed = False
        self._writer = threading.Thread(target=self._write_all, name="ramet-results", daemon=True)
        self._writer.start()

    def read(self, key: str) -> str | None:
        """Return the answer stored under `key`, or None."""
        with self._lock:
            if key in self._pending:
                return self._pending[key]
            self._check_open()
            row = self._select("SELECT answer FROM results WHERE key = ?", key)
        return None if row is None else str(row[0])

    def count(self) -> int:
        """Return how many answers there are."""
        with self._lock:
            self._check_open()
            row = self._select("SELECT count(*) FROM results")
        return 0 if row is None else int(row[0])

    def write(self, key: str, answer: str) -> None:
        """Store an answer soon; one that comes after `close` is dropped, with a log line."""
        with self._lock:
            if self._is_closed:
                _log.warning("%s is closed: an answer that came later is not kept", self.path)
                return
            self._pending[key] = answer
            self._queue.put((key, answer))

    def close(self) -> None:
        """Write what is left and close; repeated calls do nothing."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            self._queue.put(None)
        self._writer.join(CLOSE_SECONDS)
        with self._lock:
            self._reader.close()

    def _select(self, query: str, *values: str) -> tuple[Any, ...] | None:
        try:
            row: tuple[Any, ...] | None = self._reader.execute(query, values).fetchone()
        except sqlite3.Error as error:
            raise _unusable(self.path, error) from error
        return row

    def _check_open(self) -> None:
        if self._is_closed:
            raise ValueError(f"the results in {self.path} are closed: make another Cached")

    def _open(self) -> sqlite3.Connection:
        return sqlite3.connect(self.path, timeout=BUSY_SECONDS, check_same_thread=False)

    def _write_all(self) -> None:
        connection = self._open()
        try:
            while (item := self._queue.get()) is not None:
                self._write_one(connection, *item)
        finally:
            connection.close()

    def _write_one(self, connection: sqlite3.Connection, key: str, answer: str) -> None:
        try:
            with connection:
                connection.execute("INSERT OR REPLACE INTO results VALUES (?, ?)", (key, answer))
        except sqlite3.Error as error:
            _log.warning("an answer could not be kept in %s: %s", self.path, error)
            return  # it stays readable in this process
        with self._lock:
            if self._pending.get(key) is answer:
                del self._pending[key]


def _unusable(path: str, error: sqlite3.Error) -> OSError:
    return OSError(f"{path!r} cannot be used for results: {error}; name another file, or remove it")
