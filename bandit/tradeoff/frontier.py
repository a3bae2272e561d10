"""The frontier of the plane: the settings of all rules that no other setting beats.

Source: docs/theory.md, section 4.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from bandit.design import Design
from bandit.probes import GRPO, PRP, SGT, XGRPO, Probe
from bandit.probes.advantage import Scale
from bandit.probes.group import Mask
from bandit.residual import NO_RESIDUAL, Residual
from bandit.tradeoff.plane import aggregate, plane
from bandit.world import World

Peers = int | Mapping[int, int]


def settings(
    *,
    weights: Sequence[float] = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0),
    caps: Sequence[float] = (1.0, 2.0, 5.0, 10.0, math.inf),
    peer_shares: Sequence[float | None] = (None, 0.25, 0.5, 0.75, 1.0),
    unweighted: bool = True,
    scale: Scale = "std",
    ddof: int = 1,
    eps: float = 1e-6,
) -> dict[str, Probe]:
    """Build a grid of settings of all sharing rules, GRPO included, by label.

    Parameters
    ----------
    weights : sequence of float
        Weights lambda of SGT.
    caps : sequence of float
        Caps of PRP's ratio; inf is the exact ratio.
    peer_shares : sequence of float or None
        Peer shares of XGRPO's baseline; None is the pooled mean.
    unweighted : bool
        Add PRP without a ratio.
    scale, ddof, eps
        Conventions of the advantage, the same for all.

    Returns
    -------
    dict of {label: Probe}
        What `frontier`, `recommend` and `plane` take.
    """
    for name, values in (("weights", weights), ("caps", caps), ("peer_shares", peer_shares)):
        if not isinstance(values, Sequence | np.ndarray):
            raise ValueError(f"{name}={values!r} is not allowed; expected a sequence of numbers")
    rule: dict[str, Any] = {"scale": scale, "ddof": ddof, "eps": eps}
    rows: list[tuple[str, Probe]] = [("GRPO", GRPO(**rule))]
    for share in peer_shares:
        name = "XGRPO, pooled" if share is None else f"XGRPO, share {share:.6g}"
        rows.append((name, XGRPO(peer_share=share, **rule)))
    for cap in caps:
        name = "PRP, no cap" if cap == math.inf else f"PRP, cap {cap:.6g}"
        rows.append((name, PRP(cap=cap, **rule)))
    if unweighted:
        rows.append(("PRP, no ratio", PRP(ratio="none", **rule)))
    rows += [(f"SGT, weight {weight:.6g}", SGT(weight=weight, **rule)) for weight in weights]
    grid = dict(rows)
    if len(grid) < len(rows):
        raise ValueError(
            f"weights, caps or peer_shares hold a value twice, to six digits; got weights={weights}"
            f", caps={caps}, peer_shares={peer_shares}"
        )
    return grid


def frontier(
    world: World,
    /,
    probes: Mapping[str, Probe] | None = None,
    *,
    receiver: int = 0,
    own: int | Sequence[int] = 8,
    peers: Peers | Sequence[Peers] = 8,
    residual: Residual = NO_RESIDUAL,
) -> pd.DataFrame:
    """Place many settings on the plane and mark those that no other setting beats.

    Parameters
    ----------
    world : World
        Contexts, rewards and policies.
    probes : {label: Probe}, optional
        The settings; default: those of `settings`.
    receiver : int
        The policy that learns.
    own, peers
        Group sizes as in `bandit.exact.moments`, or several of them: every rule is then placed
        at every pair of sizes, and the sizes are written into the label.
    residual : Residual
        Tokenizer mismatch of the peers' rollouts.

    Returns
    -------
    DataFrame
        One row a setting: ``label``, ``kind``, the rule's ``weight``, ``ratio``, ``cap`` and
        ``peer_share`` (missing where it has no such setting, or for the pooled mean), ``own``
        (G), ``peers`` (M, over all peers; 0 for a rule that needs none), then the population's
        figures as in `bandit.tradeoff.aggregate`, and ``on_frontier``.

    Raises
    ------
    ValueError
        If there is nothing to place or a setting is out of range.

    Notes
    -----
    The axes are ``stability_cost`` and ``support_gain`` of the population, see `non_dominated`.
    """
    if probes is None:
        probes = settings()
    owns, peer_sizes = _several(own), _several(peers)
    if not probes or not owns or not peer_sizes:
        raise ValueError(
            f"got {len(probes)} probes, {len(owns)} sizes own and {len(peer_sizes)} sizes peers; "
            "expected at least one of each"
        )
    frames = []
    for i, size in enumerate(peer_sizes):
        # a rule without peers is the same at every M
        placed = {name: p for name, p in probes.items() if p.needs or i == 0}
        for group in owns if placed else ():
            design = Design.of(world, receiver=receiver, own=group, peers=size)
            rows = aggregate(
                plane(world, placed, receiver=receiver, own=group, peers=size, residual=residual)
            )
            described = pd.DataFrame([_describe(p, design) for p in placed.values()])
            if len(owns) * len(peer_sizes) > 1:
                rows["label"] += [
                    f", G={g}, M={m}" if m else f", G={g}"
                    for g, m in zip(described["own"], described["peers"], strict=True)
                ]
            frames.append(
                pd.concat([rows[["label"]], described, rows.drop(columns="label")], axis=1)
            )
    frame = pd.concat(frames, ignore_index=True)
    frame["on_frontier"] = non_dominated(frame["stability_cost"], frame["support_gain"])
    return frame


def non_dominated(cost: ArrayLike, gain: ArrayLike, /) -> Mask:
    """Tell which points no other beats: costs no more and gains no less, one of them strictly.

    Parameters
    ----------
    cost, gain : array_like, shape (n,)
        A lower cost and a higher gain are better.

    Returns
    -------
    ndarray of bool, shape (n,)
        Equal points stand or fall together. A point without a finite cost and gain is never on
        the frontier, and beats none.
    """
    cost, gain = np.asarray(cost, dtype=np.float64), np.asarray(gain, dtype=np.float64)
    known = np.isfinite(cost) & np.isfinite(gain)
    kept = known.copy()
    best = -np.inf  # largest gain at any lower cost
    for value in np.unique(cost[known]):
        level = known & (cost == value)
        top = gain[level].max()
        kept[level] = (gain[level] == top) & (top > best)
        best = max(best, top)
    return kept


def _describe(probe: Probe, design: Design, /) -> dict[str, Any]:
    missing = {"weight": np.nan, "ratio": None, "cap": np.nan, "peer_share": np.nan}
    mine = {name: getattr(probe, name) for name in missing if hasattr(probe, name)}
    return {
        "kind": probe.kind,
        **missing,
        **mine,
        "own": design.own,
        "peers": design.rollouts - design.own if probe.needs else 0,
    }


def _several(sizes: Any, /) -> list[Any]:
    return list(sizes) if isinstance(sizes, Sequence | np.ndarray) else [sizes]
