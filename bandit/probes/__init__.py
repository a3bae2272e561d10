"""The sharing rules ("probes"), each defined once for theory and trainer.

`Probe.credit` turns a `Group` of rewards into `Credit`: what each rollout is worth to the
receiver, and by which route. The bandit executes credit with exact scores, the trainer with
autograd; neither knows which rule it executes.
"""

import difflib
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from bandit.probes.advantage import AdvantageRule, Population
from bandit.probes.credit import Credit, RatioRule, effective_sample_size
from bandit.probes.group import Group
from bandit.probes.grpo import GRPO
from bandit.probes.probe import Probe
from bandit.probes.prp import PRP
from bandit.probes.sgt import SGT, UngatedNLL
from bandit.probes.xgrpo import XGRPO

__all__ = [
    "GRPO",
    "PROBES",
    "PRP",
    "SGT",
    "XGRPO",
    "AdvantageRule",
    "Credit",
    "Group",
    "Population",
    "Probe",
    "RatioRule",
    "UngatedNLL",
    "effective_sample_size",
    "probe_from_config",
    "probe_to_config",
]

PROBES: dict[str, type[Probe]] = {cls.kind: cls for cls in (GRPO, PRP, XGRPO, SGT, UngatedNLL)}


def probe_from_config(config: Mapping[str, Any], /) -> Probe:
    """Build a probe from ``{"kind": ..., setting: value, ...}``.

    Raises
    ------
    ValueError
        If the kind or a setting is unknown, or a value is out of range; the message names what
        was got and what is allowed.
    """
    settings = dict(config)
    kind = settings.pop("kind", None)
    if not isinstance(kind, str) or kind not in PROBES:
        raise ValueError(
            f"probe kind {kind!r} is unknown; expected one of {sorted(PROBES)}"
            + _did_you_mean(kind, list(PROBES))
        )
    allowed = [field.name for field in fields(PROBES[kind])]
    for key in settings:
        if key not in allowed:
            raise ValueError(
                f"probe {kind!r} has no setting {key!r}; expected any of {allowed}"
                + _did_you_mean(key, allowed)
            )
    return PROBES[kind](**settings)


def probe_to_config(probe: Probe, /) -> dict[str, Any]:
    """Every setting of `probe` with its kind: the inverse of `probe_from_config`."""
    return {"kind": probe.kind, **asdict(probe)}


def _did_you_mean(word: Any, known: list[str], /) -> str:
    close = difflib.get_close_matches(str(word), known, n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""
