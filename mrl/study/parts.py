"""Finished cells on disk: one parquet file a cell, whole or not there.

A part is written aside and renamed, so a study that is killed at any moment leaves only parts that
are complete, and the same command goes on from there. One process at a time writes to a folder.
"""

import os
import re
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from mrl.errors import InputError, RunError

# Only files of these names are ever removed.
PART = re.compile(r"[0-9a-f]{32}\.parquet")
ASIDE = re.compile(r"\.[0-9a-f]{32}\.parquet\.\d+\.partial")


@dataclass(frozen=True)
class Parts:
    """The folder of a study's parts."""

    folder: Path

    @classmethod
    def open(cls, folder: Path, /) -> "Parts":
        """Make the folder.

        Raises
        ------
        InputError
            If it cannot be written.
        """
        try:
            folder.mkdir(parents=True, exist_ok=True)
            probe = folder / ".writable"
            probe.touch()
            probe.unlink(missing_ok=True)  # another study may be at the same
        except OSError as error:
            raise InputError(
                f"cannot write to {folder}: {error.strerror}; give a folder with -o"
            ) from None
        return cls(folder)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Keep other studies out of the folder for as long as the context lasts.

        The lock is an exclusive transaction of SQLite, which every system knows and which ends with
        the process, however that ends; the file that it is held on stays.

        Raises
        ------
        InputError
            If another study holds it, or the file system knows no locks.
        """
        output = self.folder.parent
        file = self.folder / ".lock"
        with ExitStack() as stack:
            try:
                held = sqlite3.connect(file, timeout=0, isolation_level=None)
                stack.enter_context(closing(held))
                held.execute("BEGIN EXCLUSIVE")
            except sqlite3.Error as error:
                # the primary code is in the low byte
                if error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY:
                    raise InputError(
                        f"another study writes to {output}; wait for it, or give another folder "
                        "with -o"
                    ) from None
                raise InputError(
                    f"cannot lock {file}: {error}; remove it if it is damaged, or give another "
                    "folder with -o"
                ) from None
            yield

    def path(self, key: str, /) -> Path:
        """File of the cell with that key."""
        return self.folder / f"{key}.parquet"

    def read(self, key: str, /) -> pd.DataFrame | None:
        """Rows of a finished cell; None if it is not there or its file is damaged."""
        try:
            return pq.read_table(self.path(key)).to_pandas()
        except (OSError, pa.ArrowException):
            return None

    def write(self, key: str, frame: pd.DataFrame, /) -> None:
        """Store the rows of a cell."""
        write_table(self.path(key), frame)

    def others(self, keys: Iterable[str], /) -> list[Path]:
        """Parts of no cell in `keys`."""
        wanted = {self.path(key).name for key in keys}
        return sorted(
            path
            for path in self.folder.iterdir()
            if PART.fullmatch(path.name) and path.name not in wanted
        )

    def unfinished(self) -> list[Path]:
        """Half-written files that killed processes left behind."""
        return sorted(path for path in self.folder.iterdir() if ASIDE.fullmatch(path.name))


def write_table(path: Path, frame: pd.DataFrame, /) -> None:
    """Write a frame as parquet, whole or not at all; equal frames give equal files.

    Raises
    ------
    RunError
        If it cannot be written.
    """
    aside = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        pq.write_table(pa.Table.from_pandas(frame, preserve_index=False), aside)
        aside.replace(path)
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror or error}") from None
