"""The file of a durable exchange: opened, checked, and changed in whole transactions only."""

import secrets
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from os import PathLike, fspath
from typing import Any

from mrl.exchange import sql
from mrl.exchange.framing import RecordError
from mrl.exchange.request import ExchangeError

_APPLICATION_ID = 0x4D524C45  # "MRLE" in the file's header: this is an exchange and nothing else
_LAYOUT = 2
_WAIT_SECONDS = 30.0


class Database:
    """One connection to an exchange's file, which threads may share.

    Parameters
    ----------
    path : path-like
        The file; made if it is not there.

    Raises
    ------
    ExchangeError
        If the file cannot be opened or written, or is not an exchange of this layout.
    """

    def __init__(self, path: str | PathLike[str], /) -> None:
        self.path = fspath(path)
        self._lock = threading.RLock()
        try:
            # isolation_level None: transactions are opened and closed by _transaction alone.
            self._connection = sqlite3.connect(
                self.path, timeout=_WAIT_SECONDS, isolation_level=None, check_same_thread=False
            )
        except sqlite3.Error as error:
            raise self._failure(error) from error
        try:
            self._set_up()
        except BaseException:
            self.close()
            raise

    def _set_up(self) -> None:
        try:
            self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.execute("PRAGMA synchronous = FULL")
        except sqlite3.Error as error:
            raise self._failure(error) from error
        with self.writing() as db:
            (tables,) = db.execute("SELECT COUNT(*) FROM sqlite_schema").fetchone()
            if not tables:
                for statement in sql.TABLES.split(";"):
                    db.execute(statement)
                db.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
                db.execute(f"PRAGMA user_version = {_LAYOUT}")
                values = {"floor": 0, "purged": 0, "file": secrets.token_hex(16)}
                db.executemany("INSERT INTO state VALUES (?, ?)", values.items())
            (application,) = db.execute("PRAGMA application_id").fetchone()
            (layout,) = db.execute("PRAGMA user_version").fetchone()
            if (application, layout) != (_APPLICATION_ID, _LAYOUT):
                raise ExchangeError(
                    f"{self.path} is a database but not an exchange of layout {_LAYOUT} (its "
                    f"layout is {layout}); choose another file, or the version that wrote it"
                )

    def _failure(self, error: Exception, /) -> ExchangeError:
        return ExchangeError(
            f"exchange file {self.path}: {error}; expected a folder that exists and a file and "
            "disk that can be written, held open by this exchange"
        )

    @contextmanager
    def _transaction(self, begin: str, /) -> Iterator[sqlite3.Connection]:
        with self._lock:
            try:
                self._connection.execute(begin)
                try:
                    yield self._connection
                    self._connection.execute("COMMIT")
                except BaseException:
                    if self._connection.in_transaction:  # a full disk may have ended it already
                        self._connection.execute("ROLLBACK")
                    raise
            except sqlite3.Error as error:
                raise self._failure(error) from error
            except RecordError as error:
                raise ExchangeError(
                    f"exchange file {self.path} holds a damaged record: {error}"
                ) from error

    def writing(self) -> AbstractContextManager[sqlite3.Connection]:
        """Everything inside happens on disk, or nothing of it does.

        Raises
        ------
        ExchangeError
            If it cannot happen, or the file holds a damaged record.
        """
        return self._transaction("BEGIN IMMEDIATE")

    def reading(self) -> AbstractContextManager[sqlite3.Connection]:
        """One state of the file for everything inside; hinders nobody who writes."""
        return self._transaction("BEGIN DEFERRED")

    def state(self, name: str, /) -> Any:
        """Return a value of the table ``state``."""
        found = self._connection.execute("SELECT value FROM state WHERE name = ?", [name])
        return found.fetchone()[0]

    def set_state(self, name: str, value: Any, /) -> None:
        """Replace a value of the table ``state``."""
        self._connection.execute("UPDATE state SET value = ? WHERE name = ?", [value, name])

    def close(self) -> None:
        """Close the file; may be called twice."""
        with self._lock:
            self._connection.close()
