"""Sampling with a transformers model: KV cache, left padding, finished rows dropped.

Shapes: B prompts, N = B * n rows, P prompt width, T response width, V vocabulary.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from mrl.distributed import each
from mrl.rollout import Decoding, Prompts, Sampled, parts_of


class HFEngine:
    """Samples with the trainer's own model, so there are no weights to take over.

    Parameters
    ----------
    model : torch.nn.Module
        See `sample`.
    decoding : Decoding
        Where to sample from.
    """

    def __init__(self, model: Any, decoding: Decoding, /) -> None:
        self.model = model
        self.decoding = decoding

    def generate(self, prompts: Prompts, n: int, seed: int, /) -> list[list[Sampled]]:
        """Sample `n` responses for each prompt; each part of a batch has a stream of its own."""
        parts = parts_of(prompts, n, self.decoding.batch)
        drawn = each(lambda i, part: self.generate_part(part, n, seed + i), parts)
        return [group for part in drawn for group in part]

    def generate_part(self, prompts: Prompts, n: int, seed: int, /) -> list[list[Sampled]]:
        """Sample `n` responses for each prompt, all at a time."""
        decoding = self.decoding
        device = next(self.model.parameters()).device
        return sample(
            self.model,
            prompts,
            n=n,
            max_tokens=decoding.max_tokens,
            temperature=decoding.temperature,
            eos_id=decoding.eos_id,
            pad_id=decoding.pad_id,
            generator=torch.Generator(device).manual_seed(seed),
            vocabulary=decoding.vocabulary,
            top_p=decoding.top_p,
        )

    def sync(self, model: Any, /) -> dict[str, float]:
        """Sample with `model` from now on."""
        self.model = model
        return {}

    def close(self) -> None:
        """Nothing to give back: the model is the trainer's."""


def left_pad(
    prompts: Sequence[Sequence[int]], pad_id: int, device: torch.device, /
) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and attention mask, each (B, P), padded on the left."""
    width = max(len(prompt) for prompt in prompts)
    ids_BP = np.full((len(prompts), width), pad_id, np.int64)
    mask_BP = np.zeros((len(prompts), width), np.int64)
    for row, prompt in enumerate(prompts):
        ids_BP[row, width - len(prompt) :] = prompt
        mask_BP[row, width - len(prompt) :] = 1
    return torch.from_numpy(ids_BP).to(device), torch.from_numpy(mask_BP).to(device)


def positions(mask_BT: torch.Tensor, /) -> torch.Tensor:
    """Position of each token, counted from the first that is not padding."""
    return (mask_BT.cumsum(-1) - 1).clamp_min(0)


def scaled_logprobs(
    logits: torch.Tensor, temperature: float, vocabulary: int | None = None, /
) -> torch.Tensor:
    """Log-probabilities at `temperature` of the first `vocabulary` tokens, at least in float32.

    A model's logits can be wider than its tokenizer's vocabulary; what lies beyond names no token
    and must be neither sampled nor part of the sum.
    """
    logits = logits[..., :vocabulary]
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return torch.log_softmax(logits / temperature, dim=-1)


def nucleus(logp: torch.Tensor, top_p: float, /) -> torch.Tensor:
    """Log-probabilities after truncation to the nucleus; -inf outside it.

    The nucleus is the smallest set of most probable tokens with a mass of at least `top_p`; of
    equally probable tokens those with lower ids come first. Its mass is scaled up to 1.

    Parameters
    ----------
    logp : Tensor, shape (..., V)
        Log-probabilities.
    top_p : float
        In (0, 1]; 1 keeps all.
    """
    if top_p >= 1:
        return logp
    ordered, order = logp.sort(dim=-1, descending=True, stable=True)
    probs = ordered.exp()
    outside = probs.cumsum(-1) - probs >= top_p
    # Without gradient: which tokens belong to the nucleus is constant almost everywhere.
    mask = torch.zeros_like(outside).scatter(-1, order, outside)
    return torch.log_softmax(logp.masked_fill(mask, -torch.inf), dim=-1)


@torch.inference_mode()
def sample(
    model: Any,
    prompts: Sequence[Sequence[int]],
    /,
    *,
    n: int,
    max_tokens: int,
    temperature: float,
    eos_id: int | None,
    pad_id: int,
    generator: torch.Generator,
    vocabulary: int | None = None,
    top_p: float = 1.0,
) -> list[list[Sampled]]:
    """Draw `n` responses for each prompt.

    Parameters
    ----------
    model : torch.nn.Module
        A causal language model of the transformers library (or one that is called like it).
    prompts : sequence of sequence of int
        Token ids of B prompts.
    n : int
        Responses a prompt.
    max_tokens : int
        Longest response, end-of-sequence token included.
    temperature : float
        Softmax temperature.
    eos_id : int or None
        Token that ends a response; None: every response has `max_tokens` tokens.
    pad_id : int
        Padding token; may equal `eos_id`, since padding is known by the mask alone.
    generator : torch.Generator
        Source of all randomness.
    vocabulary : int, optional
        Token ids below it can be sampled. Default: all that the model has logits for.
    top_p : float
        Mass of the nucleus that is sampled from; the log-probabilities are those of the truncated
        distribution. Default: no truncation.

    Returns
    -------
    list of list of Sampled
        B lists of n responses.
    """
    was_training = model.training
    model.eval()
    try:
        found = _sample_rows(
            model,
            prompts,
            n,
            max_tokens,
            lambda logits_NV: nucleus(scaled_logprobs(logits_NV, temperature, vocabulary), top_p),
            eos_id,
            pad_id,
            generator,
        )
    finally:
        model.train(was_training)
    rows = iter(_responses(*found))
    return [[next(rows) for _ in range(n)] for _ in prompts]


def _sample_rows(
    model: Any,
    prompts: Sequence[Sequence[int]],
    n: int,
    max_tokens: int,
    distribution: Callable[[torch.Tensor], torch.Tensor],
    eos_id: int | None,
    pad_id: int,
    generator: torch.Generator,
) -> tuple[torch.Tensor, ...]:
    device = next(model.parameters()).device
    ids_BP, mask_BP = left_pad(prompts, pad_id, device)
    out = model(
        input_ids=ids_BP,
        attention_mask=mask_BP,
        position_ids=positions(mask_BP),
        use_cache=max_tokens > 1,
        logits_to_keep=1,
    )
    rows = len(prompts) * n
    logits_NV = out.logits[:, -1].repeat_interleave(n, dim=0)
    mask_NP = mask_BP.repeat_interleave(n, dim=0)
    cache = out.cache if max_tokens > 1 else None
    if cache is not None:
        cache.batch_repeat_interleave(n)
    dtype = torch.promote_types(logits_NV.dtype, torch.float32)
    ids_NT = torch.full((rows, max_tokens), pad_id, dtype=torch.long, device=device)
    logprobs_NT = torch.zeros((rows, max_tokens), dtype=dtype, device=device)
    lengths_N = torch.full((rows,), max_tokens, dtype=torch.long, device=device)
    finished_N = torch.zeros(rows, dtype=torch.bool, device=device)
    live = torch.arange(rows, device=device)
    for t in range(max_tokens):
        logp_NV = distribution(logits_NV)
        # The Gumbel-max trick: one draw a row from the distribution.
        noise = torch.empty_like(logp_NV).exponential_(generator=generator)
        token_N = (logp_NV - noise.log()).argmax(-1)
        ids_NT[live, t] = token_N
        logprobs_NT[live, t] = logp_NV.gather(-1, token_N[:, None])[:, 0]
        ended = (
            token_N == eos_id if eos_id is not None else torch.zeros_like(token_N, dtype=torch.bool)
        )
        if ended.any():
            lengths_N[live[ended]] = t + 1
            finished_N[live[ended]] = True
            keep = (~ended).nonzero()[:, 0]
            live, token_N, mask_NP = live[keep], token_N[keep], mask_NP[keep]
            if cache is not None and len(live):
                cache.batch_select_indices(keep)
        if not len(live) or t + 1 == max_tokens:
            break
        mask_NP = torch.cat([mask_NP, mask_NP.new_ones(len(live), 1)], dim=1)
        out = model(
            input_ids=token_N[:, None],
            attention_mask=mask_NP,
            position_ids=positions(mask_NP)[:, -1:],
            cache=cache,
            use_cache=True,
        )
        logits_NV = out.logits[:, -1]
    return ids_NT, logprobs_NT, lengths_N, finished_N


def _responses(
    ids_NT: torch.Tensor,
    logprobs_NT: torch.Tensor,
    lengths_N: torch.Tensor,
    finished_N: torch.Tensor,
) -> Iterator[Sampled]:
    logprobs = logprobs_NT.double().cpu().numpy()
    rows = zip(ids_NT.tolist(), logprobs, lengths_N.tolist(), finished_N.tolist(), strict=True)
    for ids, row, length, finished in rows:
        yield Sampled(tuple(ids[:length]), row[:length], finished)
