"""Records that a finished run left in its exchange file, read without changing the file."""

import sqlite3
from pathlib import Path

from mrl.exchange.framing import RecordError
from mrl.exchange.records import Record, decode
from mrl.exchange.request import ExchangeError

READ = "SELECT encoded FROM record WHERE kind = ? ORDER BY version, policy_id, prompt_id, position"


def stored_records(path: Path, kind: str, /) -> list[Record]:
    """All records of a kind in an exchange file, older versions first.

    A collect would count as a delivery; this opens the file read-only and leaves no trace in it.

    Parameters
    ----------
    path : Path
        ``exchange.sqlite`` of a run's folder.
    kind : str
        `Record.KIND`.

    Raises
    ------
    ExchangeError
        If the file cannot be read, is no exchange, or holds a damaged record.
    """
    try:
        # Reading a write-ahead log makes files beside it. Without one, which is how a run that has
        # ended leaves it, the file can be read as it lies, also in a folder that cannot be written.
        mode = "mode=ro" if path.with_name(f"{path.name}-wal").exists() else "immutable=1"
        database = sqlite3.connect(f"{path.absolute().as_uri()}?{mode}", uri=True)
        try:
            rows = database.execute(READ, [kind]).fetchall()
        finally:
            database.close()
        return [decode(encoded) for (encoded,) in rows]
    except sqlite3.Error as error:
        raise ExchangeError(
            f"exchange file {path}: {error}; expected an exchange.sqlite that a run wrote"
        ) from error
    except RecordError as error:
        raise ExchangeError(f"exchange file {path} holds a damaged record: {error}") from error
