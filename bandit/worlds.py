"""Named example worlds, each with its story, and random ones.

Source: docs/theory.md, sections 1, 4 and 5.
"""

import numpy as np
from numpy.typing import ArrayLike

from bandit.design import whole_number
from bandit.probes.group import Array, Mask
from bandit.world import World

# Shares of one group of arms differ between two policies by a factor of at most 4.
MAX_SKEW = 4.0

EXAMPLES = (
    "rare_success",
    "specialists",
    "dead_groups",
    "complementary_pair",
    "teacher_and_student",
    "three_families",
    "crowded_successes",
    "noisy_verifier",
    "shared_representation",
    "random_world",
)


def rare_success(p: float, /, *, arms: int = 8) -> World:
    """One context where the receiver (policy 0) hardly succeeds and its peer does half the time.

    Two success arms: the receiver plays them with probability ``0.9 p`` and ``0.1 p``, the peer
    with 0.1 and 0.4; the rest is uniform. Source: docs/theory.md, section 4.
    """
    if not 0 <= p <= 1 or arms < 3:
        raise ValueError(f"got p={p!r} and arms={arms!r}; expected 0 <= p <= 1 and arms >= 3")
    rest = np.ones(arms - 2) / (arms - 2)
    receiver = np.concatenate([[0.9 * p, 0.1 * p], (1 - p) * rest])
    peer = np.concatenate([[0.1, 0.4], 0.5 * rest])
    return World.tabular([[receiver], [peer]], [[1.0, 1.0, *np.zeros(arms - 2)]])


def specialists(
    *,
    policies: int = 2,
    contexts_each: int = 4,
    arms: int = 8,
    weak: float = 0.005,
    strong: float = 0.8,
) -> World:
    """Policies with a skill each: `strong` on their own contexts, `weak` on all others.

    The first arm of each context is the success; failures share the rest evenly. A small `weak`
    is where a receiver's own groups are dead and only sharing can help.
    """
    _check_counts(policies=policies, contexts_each=contexts_each, arms=arms)
    sound = policies >= 1 and contexts_each >= 1 and arms >= 2
    if not sound or not (0 <= weak <= 1 and 0 <= strong <= 1):
        raise ValueError(
            f"got policies={policies}, contexts_each={contexts_each}, arms={arms}, weak={weak}, "
            f"strong={strong}; expected counts >= 1, arms >= 2 and probabilities in [0, 1]"
        )
    owner = np.repeat(np.arange(policies), contexts_each)
    hit = np.where(owner == np.arange(policies)[:, None], strong, weak)[..., None]
    miss = np.repeat((1 - hit) / (arms - 1), arms - 1, axis=-1)
    rewards = np.zeros((len(owner), arms))
    rewards[:, 0] = 1.0
    return World.tabular(np.concatenate([hit, miss], axis=-1), rewards)


def dead_groups(*, hardest: float = 1e-4, contexts: int = 4, arms: int = 16) -> World:
    """Build an exam that is too hard for one of two models.

    From prompt to prompt the receiver (policy 0) succeeds less often, from 0.1 down to `hardest`.
    With eight tries a prompt most of its groups are all wrong, and GRPO learns nothing from them. A
    larger model solves every prompt three times in ten, by the same two answers. How much of that
    reaches the receiver, and where does it stop needing help?
    """
    _check_probability("hardest", hardest)
    _check_counts(contexts=contexts, arms=arms)
    p = np.geomspace(0.1, max(hardest, 1e-300), contexts)
    return _with_success(np.stack([p, np.full(contexts, 0.3)]), arms, (0.5, 0.5))


def complementary_pair(*, weak: float = 0.02, strong: float = 0.8, arms: int = 16) -> World:
    """Build two models of equal rank and opposite skills.

    One was trained on code, the other on proofs: each solves its own kind of prompt with
    probability `strong` and the other's with `weak`. Neither is a teacher. What one lacks the other
    has, so both can gain from sharing, and both have something to lose.
    """
    return specialists(policies=2, contexts_each=2, weak=weak, strong=strong, arms=arms)


def teacher_and_student(*, student: float = 0.05, teacher: float = 0.7, arms: int = 16) -> World:
    """Build a strong model and a weak one that knows the answers by other words.

    The teacher (policy 1) is better on every prompt. Of the two right answers it gives mostly the
    second, while the student (policy 0), when it is right at all, gives the first. Density ratios
    between them are large on right answers and on wrong ones alike: the case in which weighting by
    ratio is unbiased and expensive.
    """
    success = np.array([[student] * 3, [teacher] * 3]) * [1.0, 0.5, 0.2]
    return _with_success(success, arms, (0.9, 0.1), (0.1, 0.9))


def three_families(*, weak: float = 0.01, strong: float = 0.7, arms: int = 16) -> World:
    """Build three models, each the only one that masters its kind of prompt.

    On every prompt a receiver has one peer that knows and one that does not. Pooled statistics mix
    the two, and a peer that fails adds nothing but rollouts: how rules treat several peers at once
    shows here.
    """
    return specialists(policies=3, contexts_each=2, weak=weak, strong=strong, arms=arms)


def crowded_successes(*, p: float = 0.6, arms: int = 8) -> World:
    """Build a prompt on which nearly every answer is right, which plain steps do not like.

    All answers but two are right. The receiver (policy 0) plays the first right one nearly always
    when it is right, the peer another one. A likelihood step on the peer's success opens a new
    answer and, in plain logits, draws so much from the old one that the success probability falls
    to first order; in the Fisher geometry it rises (theory, section 5, fact 6).
    """
    _check_probability("p", p)
    if arms < 5:
        raise ValueError(f"arms={arms!r} is not allowed; expected at least 5")
    right = arms - 2
    receiver, peer = np.full((2, right), 1e-3 / right)
    receiver[0] += 1 - 1e-3
    peer[1] += 1 - 1e-3
    probs = [
        np.concatenate([p * receiver, np.full(2, (1 - p) / 2)]),
        np.concatenate([0.8 * peer, np.full(2, 0.1)]),
    ]
    return World.tabular(np.array(probs)[:, None], [[1.0] * right + [0.0, 0.0]])


def noisy_verifier(
    *, false_positive: float = 0.05, false_negative: float = 0.1, weak: float = 0.02
) -> World:
    """Build the complementary pair with a judge that can be wrong.

    A wrong answer passes with probability `false_positive`, a right one fails with
    `false_negative`. Where the peer is nearly always wrong as well, most of what is called a
    success is none, and a rule that trusts one verified success is taught a wrong answer.
    """
    world = complementary_pair(weak=weak)
    return world.noisy(false_positive=false_positive, false_negative=false_negative)


def shared_representation(
    *, contexts: int = 6, arms: int = 12, features: int = 32, seed: int = 0
) -> World:
    """Build two models whose prompts share parameters, so that a step on one moves the others.

    Each policy scores answers by random linear features of its own and has learned to solve one
    half of the prompts. What a likelihood step on the other half does to the skill it has is called
    interference; a table of logits cannot show it.
    """
    if contexts < 2 or arms < 3 or features < 1:
        raise ValueError(
            f"got contexts={contexts}, arms={arms}, features={features}; expected at least 2, 3, 1"
        )
    rng = np.random.default_rng(seed)
    rewards = np.zeros((contexts, arms))
    rewards[:, 0] = 1.0
    owned = np.arange(contexts) < contexts // 2
    phis = [rng.normal(size=(contexts, arms, features)) / np.sqrt(features) for _ in range(2)]
    thetas = [_solving(phi, mine) for phi, mine in zip(phis, (owned, ~owned), strict=True)]
    return World.linear(phis, thetas, rewards)


def from_success(success: ArrayLike, /, *, arms: int = 16) -> World:
    """Build a world from what one knows of some policies: how often each succeeds on which prompts.

    In each context the first two arms are the successes. A policy's success mass and the rest are
    spread over their arms geometrically, from the first to the last arm by a factor that goes from
    1/2 for the first policy to 2 for the last. So policies prefer different answers, and a
    probability ratio is at most 4 times the ratio of the masses.

    Parameters
    ----------
    success : array_like, shape (N, X)
        Success probability of each policy on each kind of prompt.
    arms : int
        Responses a prompt; >= 3.
    """
    table = np.asarray(success, dtype=np.float64)
    if table.ndim != 2 or 0 in table.shape:
        raise ValueError(
            f"success has shape {table.shape}; expected probabilities of shape (policies, prompts)"
        )
    if not ((table >= 0) & (table <= 1)).all():
        raise ValueError(f"success={table.tolist()} is not allowed; expected probabilities")
    if arms < 3:
        raise ValueError(f"arms={arms!r} is not allowed; expected at least 3")
    half = np.sqrt(MAX_SKEW)
    probs = np.zeros((*table.shape, arms))
    for i, factor in enumerate(np.geomspace(1 / half, half, len(table))):
        probs[i, :, :2] = table[i, :, None] * _geometric(2, factor)
        probs[i, :, 2:] = (1 - table[i, :, None]) * _geometric(arms - 2, factor)
    rewards = np.zeros(probs.shape[1:])
    rewards[:, :2] = 1.0
    return World.tabular(probs, rewards)


def random_world(
    rng: np.random.Generator,
    /,
    *,
    policies: int = 2,
    contexts: int = 3,
    arms: int = 5,
    levels: tuple[float, ...] = (0.0, 1.0),
    max_ratio: float = 50.0,
) -> World:
    """Draw a world in which no probability ratio of two policies exceeds `max_ratio`.

    Every context has an arm of each reward level (as far as there are arms). Probabilities are
    Dirichlet draws, mixed with the uniform distribution until the bound holds.
    """
    _check_counts(policies=policies, contexts=contexts, arms=arms)
    if max_ratio <= 1:
        raise ValueError(f"max_ratio={max_ratio!r} is not allowed; expected a number > 1")
    probs = rng.dirichlet(np.ones(arms), size=(policies, contexts))
    excess = arms * probs.max() - 1
    lowest = arms * probs.min()
    # mixing with share m leaves (1 + (1-m) excess) / (m + (1-m) lowest) as a bound on the ratio
    mix = (1 + excess - max_ratio * lowest) / (max_ratio * (1 - lowest) + excess)
    mix = float(np.clip(mix, 0.0, 1.0))
    cycle = np.resize(np.asarray(levels), arms)
    rewards = np.stack([rng.permutation(cycle) for _ in range(contexts)])
    return World.tabular(
        (1 - mix) * probs + mix / arms,
        rewards,
        rng.random(contexts) + 0.1,
        success_threshold=max(levels),
    )


def _solving(phi: Array, owned: Mask, /) -> Array:
    """Parameters by which the first arm stands out on owned contexts and falls behind on others.

    Least squares on the logit gaps: +3 nats where owned, -3 where not.
    """
    gaps = phi[:, :1] - phi[:, 1:].mean(axis=1, keepdims=True)
    target = np.where(owned, 3.0, -3.0)
    theta: Array = np.linalg.lstsq(gaps[:, 0], target, rcond=1e-10)[0]
    return theta


def _with_success(success: Array, arms: int, *split: tuple[float, float]) -> World:
    """World with two right answers: success mass (N, X), split between them by policy."""
    if arms < 3:
        raise ValueError(f"arms={arms!r} is not allowed; expected at least 3")
    shares = np.array([split[i % len(split)] for i in range(len(success))])
    hits = success[..., None] * shares[:, None, :]
    misses = np.repeat((1 - success)[..., None] / (arms - 2), arms - 2, axis=-1)
    rewards = np.zeros((success.shape[1], arms))
    rewards[:, :2] = 1.0
    return World.tabular(np.concatenate([hits, misses], axis=-1), rewards)


def _geometric(arms: int, factor: float, /) -> Array:
    """Shares of `arms` arms, growing geometrically; the last is `factor` times the first."""
    shares = np.geomspace(1.0, factor, arms)
    return shares / shares.sum()


def _check_counts(**counts: int) -> None:
    for name, value in counts.items():
        whole_number(name, value, 1)


def _check_probability(name: str, value: float, /) -> None:
    if not 0 <= value <= 1:
        raise ValueError(f"{name}={value!r} is not allowed; expected a probability")
