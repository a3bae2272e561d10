"""Laws about a rule's gradient in whole worlds, by exact analysis."""

import numpy as np

from bandit import exact, sampling
from bandit.moments import cosine
from bandit.probes import Probe
from bandit.testing.examples import Case
from bandit.testing.law import differing
from bandit.world import World

DRAWS = 4000
Z_BOUND = 6.0
RARER = 100.0


def simulation_agrees(probe: Probe, case: Case, rng: np.random.Generator, /) -> str | None:
    """Mean and tr Cov of simulated gradients are the exact ones, within z bounds."""
    computed = exact.moments(case.world, probe, **case.settings)
    seed = int(rng.integers(2**31))
    drawn = sampling.gradients(case.world, probe, **case.settings, n=DRAWS, seed=seed)
    away = drawn - computed.mean
    variance = np.maximum(np.einsum("xkk->xk", computed.covariance()), 0.0)
    longest = float(np.abs(away).max())
    gap = np.abs(away.mean(0))
    # Bernstein: a normal bound, and a term for terms too rare for one
    bound = Z_BOUND * np.sqrt(variance / DRAWS) + Z_BOUND**2 / 3 * longest / DRAWS + 1e-12
    if not (gap <= bound).all():
        x, k = (int(i) for i in np.unravel_index(np.argmax(gap / bound), gap.shape))
        return (
            f"mean[{x}, {k}] is {drawn.mean(0)[x, k]:.6g} in {DRAWS} simulated groups (seed "
            f"{seed}) and {computed.mean[x, k]:.6g} exactly; expected a gap below {bound[x, k]:.2g}"
        )
    lengths = np.square(away).sum(-1)
    trace, spread = lengths.mean(0), lengths.std(0, ddof=1) / np.sqrt(DRAWS)
    bounds = Z_BOUND * spread + Z_BOUND**2 / 3 * lengths.max() / DRAWS + 1e-12
    wrong = np.flatnonzero(~(np.abs(trace - computed.covariance_trace) <= bounds))
    if not len(wrong):
        return None
    x = int(wrong[0])
    return (
        f"tr Cov in context {x} is {trace[x]:.6g} in {DRAWS} simulated groups (seed {seed}) and "
        f"{computed.covariance_trace[x]:.6g} exactly; expected a gap below {bounds[x]:.2g}"
    )


def opens_support(probe: Probe, case: Case, rng: np.random.Generator, /) -> str | None:
    """Where the receiver has no success and a peer has, the update flows into success arms.

    And does so no matter how rare the receiver's successes are: the flow of rules that only weigh
    own or reweighted rollouts is of the order of p.
    """
    flows = [
        float(np.where(world.success, placed.mean_without_success, 0.0).sum())
        for world in (case.world, _rarer(case.world))
        for placed in (exact.moments(world, probe, **case.settings),)
    ]
    if 0 < flows[0] <= 2 * flows[1]:
        return None
    return (
        f"flow into success arms is {flows[0]:.4g}, and {flows[1]:.4g} where the receiver's "
        f"successes are {RARER:g} times as rare; expected more than 0, and hardly less then"
    )


def keeps_direction(probe: Probe, case: Case, rng: np.random.Generator, /) -> str | None:
    """E[g] is a positive multiple of the true gradient."""
    computed = exact.moments(case.world, probe, **case.settings)
    cosines = cosine(computed.mean, computed.true_gradient)
    if (cosines >= 1 - 1e-9).all():
        return None
    return f"cos(E g, g*) is {cosines.tolist()} by context; expected 1"


def splitting_is_immaterial(probe: Probe, case: Case, rng: np.random.Generator, /) -> str | None:
    """A peer is the same as two identical ones with half of its rollouts each."""
    half, twins = case.peers[1], case.world.with_policies([0, 1, 1])
    one = exact.moments(case.world, probe, own=case.own, peers={1: 2 * half})
    two = exact.moments(twins, probe, own=case.own, peers={1: half, 2: half})
    return differing("E[g]", two.mean, one.mean) or differing(
        "tr Cov", two.covariance_trace, one.covariance_trace
    )


def _rarer(world: World, /) -> World:
    """Make the receiver's successes `RARER` times as rare, at the same shares among themselves."""
    probs, p = np.array(world.probs), world.success_probability[0][:, None]
    share = np.where(world.success, 1 / RARER, (1 - p / RARER) / (1 - p))
    probs[0] *= share
    return World.tabular(probs, world.rewards, world.weights, world.success_threshold)
