"""What the bandit predicts for each row of the demo, in the regime that was measured."""

from collections.abc import Sequence

import pandas as pd

from bandit import exact
from bandit.probes import GRPO
from mrl.config import RunConfig
from mrl.demo.plan import POLICIES, Mode, base
from mrl.gate.worlds import gate_world


def predict(modes: Sequence[tuple[Mode, RunConfig]], /) -> pd.DataFrame:
    """Place each mode on the plane of the regime in its configuration's gate section.

    Returns
    -------
    DataFrame
        One row for each mode and receiver. ``relative_cost``: tr Cov(g) averaged over the two
        kinds of prompt, relative to GRPO with G own rollouts. ``support_gain``: U on prompts of
        the peer's skill. ``bias_cosine`` there and on prompts of the own skill.
    """
    rows = []
    for mode, config in modes:
        world = gate_world(config)
        size = base()["group"]["own"]
        for receiver, name in enumerate(POLICIES):
            peers = {POLICIES.index(one): n for one, n in config.peers_of(name).items()}
            moments = exact.moments(
                world,
                config.probe,
                receiver=receiver,
                own=config.group.own,
                peers=peers,
                redraws=config.group.redraws,
            )
            alone = exact.moments(world, GRPO(), receiver=receiver, own=size, peers=0)
            cost, reference = moments.covariance_trace.mean(), alone.covariance_trace.mean()
            other = 1 - receiver  # kinds of prompt stand in the order of the policies' skills
            rows.append(
                {
                    "mode": mode.key,
                    "policy": name,
                    "relative_cost": float(cost / reference) if reference > 0 else float("nan"),
                    "support_gain": float(moments.support_gain[other]),
                    "cosine_own": float(moments.bias_cosine[receiver]),
                    "cosine_peer": float(moments.bias_cosine[other]),
                }
            )
    return pd.DataFrame(rows)
