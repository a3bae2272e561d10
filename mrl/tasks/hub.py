"""Questions and answers from data sets of the library `datasets`: files, folders, or the hub."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mrl.config import DatasetTask
from mrl.errors import InputError
from mrl.tasks.optional import library
from mrl.tasks.rows import Number, Row, Source

# Single files by their endings, and what the library calls them.
FORMATS = {".parquet": "parquet", ".jsonl": "json", ".json": "json", ".csv": "csv"}
# Files that tell a folder written by `save_to_disk`.
SAVED = ("dataset_dict.json", "state.json")


def sources(config: DatasetTask, /) -> tuple[Source, Source | None]:
    """Training rows and, where a split of them is named, held-out rows.

    Raises
    ------
    InputError
        If the library is not installed, or cannot load the data set or a split.
    """
    held = None if config.eval_split is None else _source(config, config.eval_split)
    return _source(config, config.split), held


def _source(config: DatasetTask, part: str, /) -> Source:
    name = f"{config.path}, split {part}"
    try:
        loaded = _load(config, part)
    except InputError:
        raise
    except Exception as error:  # the library raises errors of every kind
        raise InputError(
            f"task: cannot load {name}: {type(error).__name__}: {error}; expected a data set of "
            "the hub, a folder or a file, with this split (task.split, task.eval_split) and "
            f"configuration (task.name={config.name!r})"
        ) from None
    return Source(name, _rows(loaded, name))


def _load(config: DatasetTask, part: str, /) -> Any:
    datasets, path = library("datasets", "the task kind 'dataset'"), Path(config.path)
    if any((path / name).exists() for name in SAVED):
        saved = datasets.load_from_disk(config.path)
        parts = saved if isinstance(saved, dict) else {"train": saved}
        if part not in parts:
            raise InputError(
                f"task: {config.path} has no split {part!r}; expected one of {sorted(parts)}"
            )
        return parts[part]
    if path.suffix in FORMATS and path.is_file():
        return datasets.load_dataset(FORMATS[path.suffix], data_files=config.path, split=part)
    return datasets.load_dataset(config.path, config.name, split=part, revision=config.revision)


def _rows(loaded: Any, name: str, /) -> Iterator[Row]:
    for number, row in enumerate(loaded):
        # Numbers of these data sets have types, and no spelling of their own.
        values = {
            key: Number(value) if type(value) in (int, float) else value
            for key, value in row.items()
        }
        yield f"{name}, row {number}", values
