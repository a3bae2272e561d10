"""Sample rollouts before and after training."""

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from bandit.probes import Group
from mrl.report.cohorts import Cohort
from mrl.report.runs import TAGLESS, Run, Sample
from mrl.report.text import visible


@dataclass(frozen=True)
class Change:
    """One held-out prompt as one policy answered it at the first and the last evaluation.

    Attributes
    ----------
    before, after : Sample
        The same where a run has one evaluation only.
    """

    before: Sample
    after: Sample

    @property
    def tag(self) -> str:
        """The prompt's label."""
        return TAGLESS if self.before.tag is None else visible(self.before.tag)

    @property
    def rescued(self) -> bool:
        """No success before and some after."""
        return solved(self.before) is False and solved(self.after) is True

    @property
    def lost(self) -> bool:
        """Some success before and none after."""
        return solved(self.before) is True and solved(self.after) is False


def solved(sample: Sample, /) -> bool | None:
    """Whether a response succeeded; None where no response was verified."""
    verified = [reward for reward in sample.rewards if reward is not None and reward == reward]
    if not verified:
        return None
    return max(verified) >= Group.success_threshold


def changes(run: Run, /) -> list[Change]:
    """Prompts sampled at both the first and the last evaluation, in the order recorded."""
    if not run.samples:
        return []
    first = min(sample.round for sample in run.samples)
    last = max(sample.round for sample in run.samples)
    after = {(s.policy, s.prompt_id): s for s in run.samples if s.round == last}
    before = [s for s in run.samples if s.round == first]
    return [
        Change(sample, after[sample.policy, sample.prompt_id])
        for sample in before
        if (sample.policy, sample.prompt_id) in after
    ]


def transitions(groups: Sequence[Cohort], /) -> pd.DataFrame:
    """How many sampled prompts were rescued and lost, summed over seeds.

    Returns
    -------
    DataFrame
        Columns cohort, policy, tag, prompts, unsolved (before), rescued, from_peer (rescued ones
        that some peer solved before), solved (before), lost.
    """
    columns = ["prompts", "unsolved", "rescued", "from_peer", "solved", "lost"]
    records = []
    for group in groups:
        for run in group.runs:
            pairs = changes(run)
            solvers: dict[str, set[str]] = {}
            for change in pairs:
                if solved(change.before):
                    solvers.setdefault(change.before.prompt_id, set()).add(change.before.policy)
            for change in pairs:
                peers = solvers.get(change.before.prompt_id, set()) - {change.before.policy}
                row = (
                    1,
                    solved(change.before) is False,
                    change.rescued,
                    change.rescued and bool(peers),
                    solved(change.before) is True,
                    change.lost,
                )
                key = (group.label, change.before.policy, change.tag)
                records.append((*key, *map(int, row)))
    keys = ["cohort", "policy", "tag"]
    frame = pd.DataFrame(records, columns=[*keys, *columns])
    return frame.groupby(keys, sort=False)[columns].sum().reset_index()
