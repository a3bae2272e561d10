"""What the gate found, for which settings, and whether a run may rely on it.

Importable without torch. Source: docs/gate.md.
"""

import hashlib
import json
import math
import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from bandit.probes import probe_to_config
from mrl.config import RunConfig
from mrl.errors import InputError, RunError
from mrl.resume import versions

CREATED_BY = "mrl validate"
OBJECTIVE = ("aggregation", "clip_low", "clip_high", "updates", "mask_truncated")
WAY_OUT = (
    "put it through the gate with `mrl promote CONFIG -o OUT` and train OUT, or train with "
    "--unvalidated, which the run's report will say"
)


@dataclass(frozen=True)
class Check:
    """One number held against a bound; build it with `at_most` or `at_least`."""

    name: str
    value: float
    bound: float
    sense: Literal["at most", "at least"]

    @classmethod
    def at_most(cls, name: str, value: float, bound: float, /) -> "Check":
        """Pass while ``value <= bound``; NaN does not pass."""
        return cls(name, float(value), float(bound), "at most")

    @classmethod
    def at_least(cls, name: str, value: float, bound: float, /) -> "Check":
        """Pass while ``value >= bound``; NaN does not pass."""
        return cls(name, float(value), float(bound), "at least")

    @property
    def passed(self) -> bool:
        """The verdict."""
        if self.sense == "at most":
            return self.value <= self.bound
        return self.value >= self.bound


@dataclass(frozen=True, eq=False)
class Rung:
    """One step of the validation ladder.

    Parameters
    ----------
    checks : tuple of Check
        All must pass.
    figures : mapping
        Everything measured, by policy.
    notes : tuple of str
        One sentence each: what the figures say, and what this rung cannot tell.
    """

    checks: tuple[Check, ...]
    figures: Mapping[str, Any]
    notes: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether there were checks and all passed."""
        return bool(self.checks) and all(check.passed for check in self.checks)


@dataclass(frozen=True, eq=False)
class Certificate:
    """The gate's result.

    Parameters
    ----------
    version : str
        Version of this package.
    speaks_for : mapping
        The settings that the verdict is about; see `speaks_for`.
    regime : mapping
        The gate's own settings and the seed.
    rungs : mapping of str to Rung
        Those that were run, and no others.
    """

    version: str
    speaks_for: Mapping[str, Any]
    regime: Mapping[str, Any]
    rungs: Mapping[str, Rung]

    @classmethod
    def of(cls, run: RunConfig, rungs: Mapping[str, Rung], /) -> "Certificate":
        """Sum up the rungs that a run's settings were put through."""
        regime = {**run.gate.model_dump(), "seed": run.seed}
        return cls(versions()["mutual-rl"], speaks_for(run), plain(regime), rungs)

    @property
    def passed(self) -> bool:
        """Whether every rung passed."""
        return bool(self.rungs) and all(rung.passed for rung in self.rungs.values())

    def to_dict(self) -> dict[str, Any]:
        """The certificate as plain JSON values, with the digest that `check` looks at."""
        rungs = {
            name: {
                "passed": rung.passed,
                "figures": rung.figures,
                "checks": [
                    {
                        "name": one.name,
                        "value": one.value,
                        "bound": one.bound,
                        "sense": one.sense,
                        "passed": one.passed,
                    }
                    for one in rung.checks
                ],
                "notes": rung.notes,
            }
            for name, rung in self.rungs.items()
        }
        body = plain(
            {
                "version": self.version,
                "created_by": CREATED_BY,
                "hash": sha256(self.speaks_for),
                "speaks_for": self.speaks_for,
                "regime": self.regime,
                "rungs": rungs,
                "passed": self.passed,
            }
        )
        return {**body, "digest": sha256(body)}


def speaks_for(run: RunConfig, /) -> dict[str, Any]:
    """Every setting whose change voids a certificate, as plain JSON values.

    The learning rate, the model and the task are not among them, nor the objective's terms on own
    tokens alone: the gate says nothing of them.
    """
    policies = {}
    for one in run.policies:
        objective = run.objective_of(one)
        policies[one.name] = {
            "probe": probe_to_config(run.probe_of(one)),
            "objective": {key: getattr(objective, key) for key in OBJECTIVE},
            "optimizer": {
                "kind": one.optimizer.kind,
                "max_grad_norm": one.optimizer.max_grad_norm,
            },
        }
        if run.group_of(one) != run.group:
            group = run.group_of(one)
            policies[one.name]["group"] = {"own": group.own, "redraws": group.redraws}
    return plain(
        {
            "policies": policies,
            "group": {
                "own": run.group.own,
                "redraws": run.group.redraws,
                "peers": {one.name: run.peers_of(one.name) for one in run.policies},
            },
            "exchange": {
                "reverify": run.exchange.reverify,
                "max_staleness": run.exchange.max_staleness,
            },
        }
    )


def check(run: RunConfig, /, *, unvalidated: bool) -> bool:
    """Tell whether a run's sharing rules are validated, and refuse it if they are not.

    Parameters
    ----------
    run : RunConfig
        The run about to start, overrides applied.
    unvalidated : bool
        Go on without a certificate that covers it.

    Returns
    -------
    bool
        True if a certificate covers the run, or none is needed because no policy uses anything
        of its peers; False only with `unvalidated`.

    Raises
    ------
    InputError
        If the certificate is missing, failed, was edited, or is about other settings; it names
        those settings.

    Notes
    -----
    The digest catches honest mistakes, a figure edited by hand or lost in a merge. It is no
    signature: whoever wants to can write a new one.
    """
    sharing = [one.name for one in run.policies if run.probe_of(one).needs]
    objection = _objection(run) if sharing else None
    if objection is None:
        return True
    if unvalidated:
        return False
    raise InputError(f"policies {sharing} learn from their peers, but {objection}; {WAY_OUT}")


def _objection(run: RunConfig, /) -> str | None:
    """Say why the run's certificate does not cover it; None if it does."""
    stored = run.certificate
    if stored is None:
        return "the configuration has no certificate"
    body = {key: value for key, value in stored.items() if key != "digest"}
    if stored.get("digest") != sha256(body):
        return "the certificate was changed after it was written (its digest does not fit it)"
    if stored["passed"] is not True:
        failed = [name for name, rung in stored["rungs"].items() if not rung["passed"]]
        return f"the certificate says that the gate did not pass (rungs {failed})"
    now = speaks_for(run)
    if stored["hash"] == sha256(now):
        return None
    changes = _differences(stored["speaks_for"], now)
    return "the certificate is about other settings: " + ", ".join(changes)


def _differences(then: Mapping[str, Any], now: Mapping[str, Any], /) -> list[str]:
    """Each setting that differs, as ``path: old -> new``."""
    old, new = dict(_leaves(then)), dict(_leaves(now))
    return [
        f"{key}: {old.get(key, 'absent')} -> {new.get(key, 'absent')}"
        for key in sorted(old.keys() | new.keys())
        if old.get(key, "absent") != new.get(key, "absent")
    ]


def _leaves(tree: Mapping[str, Any], prefix: str = "", /) -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def write(certificate: Certificate, path: Path, /) -> None:
    """Write a certificate as JSON.

    Raises
    ------
    RunError
        If it cannot be written.
    """
    write_text(path, json.dumps(certificate.to_dict(), indent=2, allow_nan=False) + "\n")


def write_text(path: Path, text: str, /) -> None:
    """Write a file that is whole or not there: aside first, then renamed.

    Raises
    ------
    RunError
        If it cannot be written.
    """
    _refuse_folder(path)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror}") from None


def check_target(path: Path, /) -> None:
    """Refuse a file that could not be written, before the work and not after it.

    Raises
    ------
    InputError
        If it is a folder, or is in one that cannot be written to.
    """
    _refuse_folder(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}; give another -o") from None


def _refuse_folder(path: Path, /) -> None:
    if path.is_dir():
        raise InputError(f"{path} is a folder; expected the name of a file to write")


def plain(value: Any, /) -> Any:
    """Plain JSON values: lists for tuples, null for NaN, "inf" and "-inf" for infinities."""
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    return value


def sha256(value: Any, /) -> str:
    """Hash of a canonical JSON form: keys sorted, no spaces."""
    text = json.dumps(plain(value), sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()
