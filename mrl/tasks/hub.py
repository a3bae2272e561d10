"""Questions and answers from data sets of the library `datasets`: files, folders, or the hub."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mrl.config import DatasetTask
from mrl.errors import InputError, words_of
from mrl.hub import local_only, offline
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
            f"task: cannot load {name}: {words_of(error)}; expected a data set of "
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
    if path.is_file():
        if path.suffix not in FORMATS:
            raise InputError(
                f"task: {config.path} is a local file of a type that is not read; expected one of "
                f"{', '.join(FORMATS)}, a folder, or the id of a data set on the hub"
            )
        return datasets.load_dataset(FORMATS[path.suffix], data_files=config.path, split=part)
    if path.exists() or not _is_id(config.path) or not local_only(config.path):
        return datasets.load_dataset(config.path, config.name, split=part, revision=config.revision)
    return _cached(config, part)


def _is_id(path: str, /) -> bool:
    """Whether a path could be the id of a data set on the hub."""
    from huggingface_hub.utils import HFValidationError, validate_repo_id

    try:
        validate_repo_id(path)
    except HFValidationError:
        return False
    return True


def _cached(config: DatasetTask, part: str, /) -> Any:
    """What the library's cache has of a data set whose hub cannot be asked."""
    import datasets

    try:
        with offline():
            return datasets.load_dataset(
                config.path, config.name, split=part, revision=config.revision
            )
    except (OSError, ValueError) as error:
        raise InputError(
            f"task: {config.path!r} is neither a file nor a folder here, the hub cannot be asked "
            f"for a data set of that id (no answer, or HF_HUB_OFFLINE is set), and its cache has "
            f"no split {part!r} of it ({words_of(error)}); correct the path, connect, fill the "
            "cache on a machine that is connected and take it along (HF_HOME), or name a local "
            f"folder or file ({', '.join(FORMATS)})"
        ) from None


def _rows(loaded: Any, name: str, /) -> Iterator[Row]:
    for number, row in enumerate(loaded):
        # Numbers of these data sets have types, and no spelling of their own.
        values = {
            key: Number(value) if type(value) in (int, float) else value
            for key, value in row.items()
        }
        yield f"{name}, row {number}", values
