"""The rollouts that a run left in its exchange, for an audit."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mrl.config import RunConfig, load
from mrl.errors import InputError
from mrl.exchange.records import RolloutRecord
from mrl.exchange.replay import stored_records
from mrl.exchange.request import ExchangeError
from mrl.tokens.retokenization import ContentEncoder

RESIDUAL = (
    *("canonical_share", "residual_rollouts", "residual_unreachable", "residual_q50"),
    *("residual_q75", "residual_q90", "residual_q99", "residual_above_5_nats"),
)


@dataclass(frozen=True)
class RunRollouts:
    """Rollouts of one policy that a run left in its exchange.

    Parameters
    ----------
    policy : str
        Who sampled them.
    records : tuple of RolloutRecord
        In order of version.
    measured : dict
        What the trainer measured of the policy in the newest of these rounds: `RESIDUAL`, as far as
        it is known.
    about : str
        Where they come from.
    """

    policy: str
    records: tuple[RolloutRecord, ...]
    measured: Mapping[str, float]
    about: str


def run_config(folder: Path, /) -> RunConfig:
    """Configuration of a run whose exchange is kept in its folder.

    Raises
    ------
    InputError
        If there is no run, or it kept no exchange.
    """
    if not (folder / "config.yaml").is_file():
        raise InputError(f"{folder} holds no run; expected the folder of a run, with config.yaml")
    config = load(folder / "config.yaml")
    if not (folder / "exchange.sqlite").is_file():
        raise InputError(
            f"{folder} kept no rollouts (exchange.store is {config.exchange.store!r}, and there is "
            "no exchange.sqlite); train with exchange.store=sqlite exchange.keep=[rollout], or "
            "audit a text with --text"
        )
    return config


def run_rollouts(folder: Path, source: str, encoder: ContentEncoder, /) -> RunRollouts:
    """Rollouts in a run's exchange that were sampled with the source's tokenizer.

    Parameters
    ----------
    folder : Path
        A run's folder; see `run_config`.
    source : str
        Name of one of its policies, or else of any tokenizer: the policy is then found by it.
    encoder : ContentEncoder
        The source's.

    Raises
    ------
    InputError
        If there are none.
    """
    config = run_config(folder)
    try:
        records = [
            one
            for one in stored_records(folder / "exchange.sqlite", RolloutRecord.KIND)
            if isinstance(one, RolloutRecord)
        ]
    except ExchangeError as error:
        raise InputError(str(error)) from None
    if not records:
        raise InputError(
            f"{folder} holds no rollout records: its sharing rules ask for none (only prp does), "
            "or training has not begun; train with exchange.keep=[rollout], or audit a text with "
            "--text"
        )
    fingerprint = encoder.table.fingerprint
    names = {one.policy_id for one in records if one.fingerprint == fingerprint}
    if source in {policy.name for policy in config.policies}:
        names &= {source}
    if len(names) != 1:
        found = sorted({one.policy_id for one in records})
        what = f"of the policies {sorted(names)}" if names else "of no policy"
        raise InputError(
            f"{folder} holds rollouts {what} with the tokenizer of {source!r}; expected those of "
            f"one: name a policy of the run as A, one of {found}"
        )
    (name,) = names
    mine = tuple(one for one in records if one.policy_id == name)
    versions = sorted({one.version for one in mine})
    about = f"rollouts of {name!r} in {folder}, rounds {versions[0]} to {versions[-1]}"
    return RunRollouts(name, mine, _measured(folder, name, versions), about)


def _measured(folder: Path, policy: str, versions: Sequence[int], /) -> dict[str, float]:
    """Figures of the newest round that has any."""
    from mrl.report import load_run

    rows = load_run(folder).rounds
    rows = rows[(rows["policy"] == policy) & rows["round"].isin(versions)].sort_values("round")
    if rows.empty:
        return {}
    newest = rows.iloc[-1]
    return {key: float(newest[key]) for key in RESIDUAL if np.isfinite(newest.get(key, np.nan))}
