"""What the bandit predicts for each row of the demo, in the regime that was measured."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from bandit import World, exact
from bandit.probes import GRPO
from mrl.config import RunConfig
from mrl.demo.plan import POLICIES, Mode
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
        for receiver, name in enumerate(POLICIES):
            cost, gain, cosine = _place(world, config, receiver)
            reference, _, _ = _place(
                world,
                config.model_copy(
                    update={
                        "probe": GRPO(),
                        "group": config.group.model_copy(
                            update={"own": 8, "peers": 0, "redraws": 0}
                        ),
                    }
                ),
                receiver,
            )
            other = 1 - receiver  # kinds of prompt stand in the order of the policies' skills
            rows.append(
                {
                    "mode": mode.key,
                    "policy": name,
                    "relative_cost": float(cost.mean() / reference.mean()),
                    "support_gain": float(gain[other]),
                    "cosine_own": float(cosine[receiver]),
                    "cosine_peer": float(cosine[other]),
                }
            )
    return pd.DataFrame(rows)


def _place(
    world: World, config: RunConfig, receiver: int, /
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    peers = config.peers_of(POLICIES[receiver])
    moments = exact.moments(
        world,
        config.probe,
        receiver=receiver,
        own=config.group.own,
        peers={POLICIES.index(name): n for name, n in peers.items()},
        redraws=config.group.redraws,
    )
    return moments.covariance_trace, moments.support_gain, moments.bias_cosine
