"""Configurations from YAML and back: read, override, check, write.

Whatever is wrong is an `InputError` that names the key, what was got and what is allowed.
"""

import difflib
from collections.abc import Iterable, Mapping
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import ValidationError

from mrl.config.base import Section
from mrl.config.inventory import InventoryConfig
from mrl.config.schema import RunConfig
from mrl.config.study import StudyConfig
from mrl.errors import InputError

Config = TypeVar("Config", RunConfig, StudyConfig, InventoryConfig)


def parse(values: Any, /, *, source: str = "configuration") -> RunConfig:
    """Check a mapping against the schema of a run.

    Raises
    ------
    InputError
        Naming each wrong key, what was got and what is expected.
    """
    if _kind(values) == "study":
        raise InputError(f"{source} is a study, not a run; the command for it is mrl study")
    return _check(RunConfig, values, source)


def parse_study(values: Any, /, *, source: str = "configuration") -> StudyConfig:
    """Check a mapping against the schema of a study.

    Raises
    ------
    InputError
        Naming each wrong key, what was got and what is expected.
    """
    return _check(StudyConfig, values, source)


def parse_any(values: Any, /, *, source: str = "configuration") -> RunConfig | StudyConfig:
    """Check a mapping against the schema that its ``kind`` names; without one, that of a run.

    Raises
    ------
    InputError
        Naming each wrong key, what was got and what is expected.
    """
    kind = _kind(values)
    if kind not in (None, "study"):
        raise InputError(f"{source}: kind {kind!r} is unknown; expected study, or none for a run")
    return parse(values, source=source) if kind is None else parse_study(values, source=source)


def _kind(values: Any, /) -> Any:
    return values.get("kind") if isinstance(values, Mapping) else None


def _check(schema: type[Config], values: Any, source: str, /) -> Config:
    if not isinstance(values, Mapping):
        raise InputError(f"{source}: got {type(values).__name__}; expected a mapping of settings")
    try:
        return schema.model_validate(values)
    except ValidationError as error:
        lines = [f"{source} is not right:"]
        for problem in error.errors():
            where = ".".join(str(part) for part in problem["loc"]) or "configuration"
            message = problem["msg"].removeprefix("Value error, ")
            if problem["type"] == "extra_forbidden":
                message = "no such setting" + _nearest(str(problem["loc"][-1]))
            got = "" if problem["type"] in ("missing", "value_error") else _got(problem["input"])
            lines.append(f"  {where}: {message}{got}")
        raise InputError("\n".join(lines)) from None


def _nearest(key: str) -> str:
    """A hint at the setting that was probably meant, of all that there are."""
    sections = [Section]
    for section in sections:  # grows while it is read
        sections += section.__subclasses__()
    known = {name for section in sections for name in section.model_fields}
    close = difflib.get_close_matches(key, sorted(known - {key}), n=1)
    return f" (did you mean {close[0]!r}?)" if close else "; mrl/config has all of them"


def _got(value: Any) -> str:
    text = repr(value)
    return f"; got {text if len(text) <= 80 else text[:77] + '...'}"


def read(path: str | Path, /) -> dict[str, Any]:
    """Read a YAML file into a mapping.

    Parameters
    ----------
    path : path
        A file, or the name of a configuration that comes with the package, without ``.yaml``; a
        file of that name goes first.

    Raises
    ------
    InputError
        If the file cannot be read or is not a YAML mapping.
    """
    shipped = {} if Path(path).is_file() else shipped_configs()
    try:
        values = yaml.safe_load(shipped.get(str(path), Path(path)).read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(
            f"cannot read {path}: {error.strerror}; expected a YAML file or one of "
            f"{sorted(shipped)}"
        ) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not valid YAML: {error}") from None
    if not isinstance(values, dict):
        raise InputError(f"{path} holds {type(values).__name__}; expected a mapping of settings")
    return values


def shipped_configs() -> dict[str, Traversable]:
    """Configurations that come with the package, by name."""
    files = resources.files("mrl.configs").iterdir()
    return {file.name.removesuffix(".yaml"): file for file in files if file.name.endswith(".yaml")}


def override(values: Mapping[str, Any], assignments: Iterable[str], /) -> dict[str, Any]:
    """Apply ``section.key=value`` assignments (YAML values; list entries by number).

    Raises
    ------
    InputError
        If an assignment is not of that form or leads through something that is no section.
    """
    result: dict[str, Any] = yaml.safe_load(yaml.safe_dump(dict(values), sort_keys=False))
    for assignment in assignments:
        path, equals, text = assignment.partition("=")
        if not equals or not path:
            raise InputError(f"override {assignment!r} is not of the form section.key=value")
        node: Any = result
        *parents, last = path.split(".")
        try:
            for part in parents:
                node = node[int(part)] if isinstance(node, list) else _section(node, part)
            node[int(last) if isinstance(node, list) else last] = yaml.safe_load(text)
        except (AttributeError, IndexError, TypeError, ValueError):
            raise InputError(f"override {assignment!r}: {path!r} leads to no setting") from None
        except yaml.YAMLError as error:
            raise InputError(f"override {assignment!r}: not a YAML value: {error}") from None
    return result


def _section(node: dict[str, Any], key: str, /) -> Any:
    """What `key` holds; a new section where it holds nothing."""
    if node.get(key) is None:
        node[key] = {}
    return node[key]


def load(path: str | Path, assignments: Iterable[str] = (), /) -> RunConfig:
    """Read, override and check a run; relative paths in it stay as written."""
    return parse(override(read(path), assignments), source=str(path))


def load_study(path: str | Path, assignments: Iterable[str] = (), /) -> StudyConfig:
    """Read, override and check a study."""
    return parse_study(override(read(path), assignments), source=str(path))


def load_any(path: str | Path, assignments: Iterable[str] = (), /) -> RunConfig | StudyConfig:
    """Read, override and check a run or a study, whichever the file is."""
    return parse_any(override(read(path), assignments), source=str(path))


def load_inventory(path: str | Path, /) -> InventoryConfig:
    """Read and check the inventory of a cluster."""
    return _check(InventoryConfig, read(path), str(path))


def dump(config: RunConfig | StudyConfig, /) -> str:
    """The whole configuration as YAML, defaults included."""
    return yaml.safe_dump(config.model_dump(), sort_keys=False, allow_unicode=True)
