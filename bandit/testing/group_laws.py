"""Laws about the credit of single groups. Each check returns None, or what is wrong in figures."""

from dataclasses import fields, replace

import numpy as np

from bandit.probes import Credit, Group, Probe, RatioRule
from bandit.probes.group import Array, Mask
from bandit.testing.examples import Example, row_of, select
from bandit.testing.law import Weights, differing, mean_weights, prefixed, weights_differ

DRAWS = 2000
Z_BOUND = 6.0


def inputs_untouched(probe: Probe, example: Example, rng: np.random.Generator, /) -> str | None:
    """Credit reads a group and does not write to it, not even to the arrays it was made of."""
    names = [f.name for f in fields(Group) if f.name not in ("peer_stats", "success_threshold")]
    arrays = {name: np.array(getattr(example.group, name)) for name in names}
    group = Group(**arrays, success_threshold=example.group.success_threshold)
    before = {name: value.copy() for name, value in arrays.items()}
    probe.credit(group, rng)
    list(probe.outcomes(group))
    for name, value in before.items():
        for after in (arrays[name], getattr(group, name)):
            if not np.array_equal(after, value, equal_nan=value.dtype == np.float64):
                return f"{name} was {value.tolist()} and is {after.tolist()} afterwards"
    return None


def sound_credit(probe: Probe, example: Example, rng: np.random.Generator, /) -> str | None:
    """Finite numbers of the group's shapes, by one ratio rule, and n_pg >= 0."""
    group = example.group
    empty = Group(own_rewards=[0.0], peer_rewards=[0.0] if probe.needs else None)
    usual = next(iter(probe.outcomes(empty)))[1].peer_ratio
    for credit in (probe.credit(group, rng), *(credit for _, credit in probe.outcomes(group))):
        wrong = _unsound(group, credit)
        if wrong is not None:
            return wrong
        if credit.peer_ratio != usual:
            return f"peer_ratio is {credit.peer_ratio} here and {usual} for another group"
    return None


def _unsound(group: Group, credit: Credit, /) -> str | None:
    own, peer = group.own_rewards.shape, group.peer_rewards.shape
    expected = {
        "own_advantage": own,
        "peer_advantage": peer,
        "nll_weight": peer,
        "n_pg": group.batch_shape,
    }
    for name, shape in expected.items():
        values = np.asarray(getattr(credit, name))
        if values.shape != shape:
            return f"{name} has shape {values.shape}; expected {shape}"
        if not np.isfinite(values).all():
            return f"{name} is {values.tolist()}; expected finite numbers"
    if (np.asarray(credit.n_pg) < 0).any():
        return f"n_pg is {np.asarray(credit.n_pg).tolist()}; expected >= 0"
    if not isinstance(credit.peer_ratio, RatioRule | None):
        return f"peer_ratio is {credit.peer_ratio!r}; expected a RatioRule or None"
    if credit.peer_ratio is None and np.any(credit.peer_advantage):
        return "peer_ratio is None, so peer_advantage is not used; expected zeros or a RatioRule"
    return None


def unverified_is_absent(probe: Probe, example: Example, rng: np.random.Generator, /) -> str | None:
    """A rollout without verdict has no weight and leaves all others as if it were not there."""
    group = example.group
    own, peer = group.own_valid, group.peer_valid
    disguised = replace(
        group,
        own_rewards=np.where(own, group.own_rewards, rng.choice([-3.0, 1.0, 7.0], own.shape)),
        peer_rewards=np.where(peer, group.peer_rewards, rng.choice([-3.0, 1.0, 7.0], peer.shape)),
    )
    weights = mean_weights(probe, group)
    return _removed(weights, mean_weights(probe, _keep(group, own, peer)), own, peer) or prefixed(
        weights_differ(mean_weights(probe, disguised), weights), "a number in its place"
    )


def unusable_is_absent(probe: Probe, example: Example, rng: np.random.Generator, /) -> str | None:
    """A text that the receiver cannot represent has no weight; its reward may count."""
    group, weights = example.group, mean_weights(probe, example.group)
    usable = group.peer_representable
    if "group_stats" in probe.needs or not probe.needs:
        lost = np.flatnonzero(~usable).tolist()
        for name, values in (("peer", weights.peer), ("likelihood", weights.likelihood)):
            if values[~usable].any():
                return f"{name} weight is {values.tolist()}; expected 0 at {lost}"
        return None
    every = np.ones(group.own_rewards.shape, np.bool_)
    return _removed(weights, mean_weights(probe, _keep(group, every, usable)), every, usable)


def dead_group_is_silent(probe: Probe, example: Example, rng: np.random.Generator, /) -> str | None:
    """Equal rewards everywhere give no policy gradient: exactly 0, as decided on rewards."""
    for _, credit in probe.outcomes(example.group):
        for name in ("own_advantage", "peer_advantage"):
            values = np.asarray(getattr(credit, name))
            if values.any():
                return f"{name} is {values.tolist()}; expected zeros"
    return None


def needs_own_rollouts(probe: Probe, example: Example, rng: np.random.Generator, /) -> str | None:
    """Without a verified own rollout there is no gradient by any route."""
    for _, credit in probe.outcomes(example.group):
        for name in ("own_weight", "peer_weight", "nll_weight"):
            values = np.asarray(getattr(credit, name))
            if values.any():
                return f"{name} is {values.tolist()}; expected zeros"
    return None


def order_is_immaterial(probe: Probe, example: Example, rng: np.random.Generator, /) -> str | None:
    """Reordered rollouts, own or peers', get the same weights in the new order."""
    group, weights = example.group, mean_weights(probe, example.group)
    own = rng.permutation(group.own_rewards.shape[-1])
    found = weights_differ(
        mean_weights(probe, select(group, own=own)), weights._replace(own=weights.own[..., own])
    )
    if found is not None:
        return f"with own rollouts in the order {own.tolist()}: {found}"
    peer = rng.permutation(group.peer_rewards.shape[-1])
    moved = Weights(weights.own, weights.peer[..., peer], weights.likelihood[..., peer])
    found = weights_differ(mean_weights(probe, select(group, peer=peer)), moved)
    return None if found is None else f"with peers' rollouts in the order {peer.tolist()}: {found}"


def names_are_immaterial(probe: Probe, example: Example, rng: np.random.Generator, /) -> str | None:
    """Which number a peer has does not matter."""
    group = example.group
    known = np.unique(group.peer_source)
    names = rng.permutation(len(known)) + 20
    renamed = replace(group, peer_source=names[np.searchsorted(known, group.peer_source)])
    found = weights_differ(mean_weights(probe, renamed), mean_weights(probe, group))
    return None if found is None else f"with peers {known.tolist()} as {names.tolist()}: {found}"


def batch_is_its_rows(probe: Probe, example: Example, rng: np.random.Generator, /) -> str | None:
    """A row of a batch gets what it gets alone, whatever the batch's shape."""
    group = example.group
    whole = mean_weights(probe, group)
    for at in np.ndindex(group.batch_shape):
        alone = mean_weights(probe, row_of(group, at))
        found = weights_differ(Weights(*(value[at] for value in whole)), alone)
        if found is not None:
            return f"row {list(at)} of the batch, against the row alone: {found}"
    square = np.arange(4).reshape(2, 2)
    folded = mean_weights(probe, row_of(group, square))
    found = weights_differ(folded, Weights(*(value[square] for value in whole)))
    return None if found is None else f"as a batch of shape (2, 2): {found}"


def credit_is_repeatable(probe: Probe, example: Example, rng: np.random.Generator, /) -> str | None:
    """The same group and the same generator give the same credit, to the bit."""
    seed = int(rng.integers(2**31))
    first = probe.credit(example.group, np.random.default_rng(seed))
    again = probe.credit(example.group, np.random.default_rng(seed))
    if first == again:
        return None
    for field in fields(Credit):
        left, right = getattr(first, field.name), getattr(again, field.name)
        if not np.array_equal(left, right):
            return f"{field.name} is {_short(left)} at first and {_short(right)} the second time"
    return "the two credits differ"


def outcomes_match_draws(probe: Probe, example: Example, rng: np.random.Generator, /) -> str | None:
    """Probabilities of `outcomes` sum to 1, and drawn credit has their mean and spread."""
    listed = list(probe.outcomes(example.group))
    chances = np.array([float(np.asarray(chance)) for chance, _ in listed])
    if (chances < -1e-12).any() or abs(chances.sum() - 1) > 1e-9:
        return f"probabilities {chances.tolist()} sum to {chances.sum()!r}; expected 1"
    possible = np.stack([_flat(credit) for _, credit in listed])
    copies = row_of(row_of(example.group, None), np.zeros(DRAWS, np.intp))
    drawn = _flat(probe.credit(copies, rng))
    for look in np.random.default_rng(0).standard_normal((3, possible.shape[-1])):
        for power, name in ((1, "mean"), (2, "mean square")):
            values, seen = (possible @ look) ** power, (drawn @ look) ** power
            mean = chances @ values
            spread = np.sqrt(max(chances @ np.square(values - mean), 0.0) / DRAWS)
            size = max(1.0, float(np.abs(values).max(initial=0.0)))
            # the second term is for outcomes so rare that a normal bound says nothing
            bound = Z_BOUND * spread + (Z_BOUND**2 / 3) * np.ptp(values) / DRAWS + 1e-9 * size
            if not abs(seen.mean() - mean) <= bound:
                return (
                    f"{name} of a mix of weights is {seen.mean():.6g} in {DRAWS} draws and "
                    f"{mean:.6g} by outcomes; expected a gap below {bound:.2g}"
                )
    return None


def asks_for_what_it_uses(
    probe: Probe, example: Example, rng: np.random.Generator, /
) -> str | None:
    """Peers' records that the rule does not declare in `needs` change nothing."""
    group, needs = example.group, probe.needs
    weights = mean_weights(probe, group)
    if "rollout" in needs or {"success", "group_stats"} <= needs:
        return None
    if "success" in needs:
        every = np.ones(group.own_rewards.shape, np.bool_)
        without = mean_weights(probe, _keep(group, every, group.peer_success))
        return _removed(weights, without, every, group.peer_success)
    if weights.peer.any() or weights.likelihood.any():
        return f"peers' texts are not among needs={sorted(needs)}, but have weight"
    if needs:
        return None
    alone = mean_weights(probe, select(group, peer=np.zeros(0, np.intp)))
    return prefixed(differing("own weight", alone.own, weights.own), "peers removed")


def silent_peers_are_none(
    probe: Probe, example: Example, rng: np.random.Generator, /
) -> str | None:
    """Peers of whose rollouts none has a verdict are no peers."""
    group = example.group
    mute = replace(group, peer_valid=np.zeros(group.peer_rewards.shape, np.bool_))
    alone = mean_weights(probe, select(group, peer=np.zeros(0, np.intp)))
    nothing = np.zeros(group.peer_rewards.shape)
    return weights_differ(mean_weights(probe, mute), Weights(alone.own, nothing, nothing))


def _keep(group: Group, own: Mask, peer: Mask, /) -> Group:
    return select(group, own=np.flatnonzero(own), peer=np.flatnonzero(peer))


def _removed(before: Weights, after: Weights, own: Mask, peer: Mask, /) -> str | None:
    """Compare with the group without rollouts: they had weight 0, the others have the same."""
    for name, values, stay in zip(
        ("own weight", "peer weight", "likelihood weight"), before, (own, peer, peer), strict=True
    ):
        if values[~stay].any():
            return f"{name} is {values.tolist()}; expected 0 at {np.flatnonzero(~stay).tolist()}"
    kept = Weights(before.own[own], before.peer[peer], before.likelihood[peer])
    return prefixed(weights_differ(kept, after), "against the group without it")


def _flat(credit: Credit, /) -> Array:
    parts = (credit.own_weight, credit.peer_weight, credit.nll_weight)
    return np.concatenate(parts, axis=-1)


def _short(value: object, /) -> str:
    return np.array2string(np.asarray(value), precision=6, threshold=12).replace("\n", "")
