"""Rows of weighted responses into padded tensors; knows routes and weights, no sharing rule.

Shapes: M rows, N different responses, P prompt width, R response width, T = P + R.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bandit.probes import RatioRule
from mrl.config import ObjectiveConfig
from mrl.rollout.hf import left_pad


@dataclass(frozen=True, eq=False)
class Source:
    """What an importance ratio needs of the policy that sampled a peer's response.

    Parameters
    ----------
    logprobs : ndarray, shape (blocks,)
        Log-probabilities of the sampled tokens, summed over aligned blocks (one block where the
        ratio rule is about whole responses), EOS included.
    block_of_token : ndarray of int, shape (R,)
        Block that each of the receiver's tokens lies in.
    canonical : bool
        Whether the sampled tokens are the canonical ones of their text.
    size : int
        Length of the text in bytes.
    """

    logprobs: NDArray[np.float64]
    block_of_token: NDArray[np.int64]
    canonical: bool
    size: int


@dataclass(frozen=True, eq=False)
class Row:
    """One response with its weights in the receiver's loss.

    Parameters
    ----------
    group : int
        Position of its prompt in the round.
    prompt, response : tuple of int
        The receiver's token ids.
    pg_weight, nll_weight : float
        Weights of the policy-gradient and the likelihood route; prompts not yet averaged.
    finished : bool
        Whether the response ended by EOS.
    source : Source or None
        For a peer's response under a ratio rule.
    counted : bool
        Whether it belongs to the policy-gradient population, whose mean length the ``token``
        aggregation divides by.
    usable : ndarray of bool, shape (R,), optional
        False takes a token out of loss and length.
    anchor : ndarray, shape (R,), optional
        Log-probabilities under the receiver before the round's first update.
    kl_weight : float
        Weight in the divergence from the reference, before its coefficient; prompts not yet
        averaged. 0 for what another policy sampled.
    engine : ndarray, shape (R,), optional
        Log-probabilities by the engine that sampled an own response; not used where not `usable`.
    """

    group: int
    prompt: tuple[int, ...]
    response: tuple[int, ...]
    pg_weight: float
    nll_weight: float = 0.0
    finished: bool = True
    source: Source | None = None
    counted: bool = True
    usable: NDArray[np.bool_] | None = None
    anchor: NDArray[np.float64] | None = None
    kl_weight: float = 0.0
    engine: NDArray[np.float64] | None = None

    @property
    def length(self) -> int:
        """Response tokens that count."""
        return len(self.response) if self.usable is None else int(self.usable.sum())


@dataclass(frozen=True)
class Assignment:
    """A round's rows for one receiver, and how its peers' rows are weighted.

    Parameters
    ----------
    rows : list of Row
        Own and peers' responses.
    groups : int
        Prompts.
    ratio : RatioRule or None
        How peers' rows with a `Source` are weighted.
    counts : dict
        What the metrics say of them.
    gated : tuple of int
        Group of each peer's row that has no weight because of the canonicality gate alone: its
        importance weight is 0, which counts among the others.
    """

    rows: list[Row]
    groups: int
    ratio: RatioRule | None = None
    counts: dict[str, Any] = field(default_factory=dict)
    gated: tuple[int, ...] = ()

    def split(self, parts: int, /) -> Iterator["Assignment"]:
        """Part the prompts evenly, in order, one part an optimizer step."""
        bounds = np.linspace(0, self.groups, min(parts, self.groups) + 1).round().astype(int)
        for low, high in zip(bounds[:-1], bounds[1:], strict=True):
            rows = [row for row in self.rows if low <= row.group < high]
            yield Assignment(rows, int(high - low), self.ratio, self.counts)


@dataclass(frozen=True, eq=False)
class Batch:
    """Padded tensors of a micro-batch: prompts left-padded, responses right-padded.

    Each different response to a prompt is computed once, whatever the number of rollouts that gave
    it: M rows stand in N places.

    Parameters
    ----------
    rows : list of Row
        M rows.
    place_M : ndarray of int
        Place of each row in the tensors.
    pg_weight_M, nll_weight_M, kl_weight_M : ndarray
        Final weights of the rows: prompts averaged, aggregation applied; ratios not yet.
    ids_NT, attention_NT, mask_NR, anchor_NR : Tensor
        Token ids, what is not padding, which response tokens count, and their log-probabilities
        before the round's first update where they are needed.
    """

    rows: list[Row]
    place_M: NDArray[np.int64]
    pg_weight_M: NDArray[np.float64]
    nll_weight_M: NDArray[np.float64]
    kl_weight_M: NDArray[np.float64]
    ids_NT: torch.Tensor
    attention_NT: torch.Tensor
    mask_NR: torch.Tensor
    anchor_NR: torch.Tensor | None

    @property
    def targets_NR(self) -> torch.Tensor:
        """The response tokens."""
        return self.ids_NT[:, self.ids_NT.shape[1] - self.mask_NR.shape[1] :]


def micro_batches(
    assignment: Assignment, objective: ObjectiveConfig, pad_id: int, device: torch.device, /
) -> Iterator[Batch]:
    """Batches of similar length that together hold every row with weight.

    Weights are final: prompts averaged, aggregation applied over the whole update, so any other
    split of the same rows gives the same gradient. Rows without weight are left out, since they
    contribute nothing to the gradient.
    """
    divisor = _divisor(assignment.rows, objective)
    weighted = [
        row
        for row in assignment.rows
        if counted_length(row, objective)
        and (row.pg_weight or row.nll_weight or objective.kl * row.kl_weight)
    ]
    for places in batches_of(weighted, objective.batch_tokens):
        scales = [1.0 / (assignment.groups * divisor(place[0])) for place in places]
        yield collate(places, scales, pad_id, device, kl=objective.kl)


def counted_length(row: Row, objective: ObjectiveConfig, /) -> int:
    """Tokens of a row that the objective counts: none of a truncated response that it masks."""
    return 0 if objective.mask_truncated and not row.finished else row.length


def _divisor(rows: Sequence[Row], objective: ObjectiveConfig, /) -> Callable[[Row], float]:
    """What the objective divides a row's sum over tokens by."""
    match objective.aggregation:
        case "sequence":
            return lambda row: float(row.length)
        case "token":
            # A masked response has length 0, so that the whole is divided by the tokens that count.
            lengths = [counted_length(row, objective) for row in rows if row.counted]
            divisor = sum(lengths) / max(len(lengths), 1) or 1.0
        case _:  # "constant"; "sum" has no length
            divisor = float(objective.length or 1)
    return lambda row: divisor


def batches_of(rows: Sequence[Row], batch_tokens: int, /) -> Iterator[list[list[Row]]]:
    """Rows in places, a place for each different response to a prompt, cut by padded tokens."""
    places: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        usable = None if row.usable is None else row.usable.tobytes()
        places.setdefault((row.prompt, row.response, usable), []).append(row)
    batch: list[list[Row]] = []
    prompt = response = 0
    for place in sorted(places.values(), key=lambda p: (len(p[0].response), len(p[0].prompt))):
        first = place[0]
        wider = max(prompt, len(first.prompt)), max(response, len(first.response))
        if batch and sum(wider) * (len(batch) + 1) > batch_tokens:
            yield batch
            batch, wider = [], (len(first.prompt), len(first.response))
        batch.append(place)
        prompt, response = wider
    if batch:
        yield batch


def collate(
    places: Sequence[list[Row]],
    scales: Sequence[float],
    pad_id: int,
    device: torch.device,
    /,
    *,
    kl: float = 0.0,
) -> Batch:
    """Pad places into tensors; the weights of place i's rows are multiplied by ``scales[i]``.

    `kl` is the coefficient of the divergence from the reference.
    """
    firsts = [place[0] for place in places]
    prompt_NP, prompt_mask_NP = left_pad([row.prompt for row in firsts], pad_id, device)
    shape = len(firsts), max(len(row.response) for row in firsts)
    ids_NR = np.full(shape, pad_id, np.int64)
    real_NR = np.zeros(shape, np.int64)
    mask_NR = np.zeros(shape, np.bool_)
    anchor_NR = np.zeros(shape) if firsts[0].anchor is not None else None
    for i, row in enumerate(firsts):
        length = len(row.response)
        ids_NR[i, :length] = row.response
        real_NR[i, :length] = 1
        mask_NR[i, :length] = True if row.usable is None else row.usable
        if anchor_NR is not None:
            anchor_NR[i, :length] = row.anchor
    place_M = np.repeat(np.arange(len(places)), [len(place) for place in places])
    rows = [row for place in places for row in place]
    scale_M = np.asarray(scales)[place_M]
    return Batch(
        rows=rows,
        place_M=place_M,
        pg_weight_M=np.array([row.pg_weight for row in rows]) * scale_M,
        nll_weight_M=np.array([row.nll_weight for row in rows]) * scale_M,
        kl_weight_M=np.array([kl * row.kl_weight for row in rows]) * scale_M,
        ids_NT=torch.cat([prompt_NP, torch.from_numpy(ids_NR).to(device)], dim=1),
        attention_NT=torch.cat([prompt_mask_NP, torch.from_numpy(real_NR).to(device)], dim=1),
        mask_NR=torch.from_numpy(mask_NR).to(device),
        anchor_NR=None if anchor_NR is None else torch.from_numpy(anchor_NR).to(device),
    )
