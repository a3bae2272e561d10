"""Each sharing rule of the demo through the gate, once a regime."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mrl.config import RunConfig
from mrl.demo.jobs import Job
from mrl.gate.certificate import plain, speaks_for

STEPS = 1


def gate_job(config: RunConfig, path: Path, /) -> Job | None:
    """A job that writes the certificate of `config` to `path`; None if it is there already."""
    stored = stored_certificate(path)
    regime = plain({**config.gate.model_dump(), "seed": config.seed})
    if stored and stored["speaks_for"] == speaks_for(config) and stored["regime"] == regime:
        return None
    return Job(f"gate {path.stem}", STEPS, _gate, (config, path))


def stored_certificate(path: Path, /) -> dict[str, Any] | None:
    """The certificate at `path`, or None where there is none that can be read."""
    try:
        certificate: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return certificate


def failures(certificate: dict[str, Any], /) -> list[str]:
    """What a certificate objects to, one short sentence a failed check."""
    return [
        f"{rung}: {check['name']} is {_figure(check['value'])}, {check['sense']} "
        f"{_figure(check['bound'])} is allowed"
        for rung, found in certificate["rungs"].items()
        for check in found["checks"]
        if not check["passed"]
    ]


def _gate(config: RunConfig, path: Path, report: Callable[[int], None]) -> None:
    from mrl.gate import run_gate
    from mrl.gate.certificate import write

    write(run_gate(config), path)
    report(STEPS)


def _figure(value: float | str | None, /) -> str:
    return f"{value:.3g}" if isinstance(value, float | int) else str(value)
