"""A policy: model, tokenizer, optimizer, and the sharing rule it learns by."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bandit.probes import Probe
from mrl.batch import Batch, Row, batches_of, collate
from mrl.config import (
    EngineConfig,
    HFEngineConfig,
    ObjectiveConfig,
    OptimizerConfig,
    PolicyConfig,
    RunConfig,
    SamplingConfig,
)
from mrl.errors import InputError, RunError
from mrl.exchange.fields import Segment
from mrl.loss import response_logprobs
from mrl.rollout import Decoding, Rollout, Sampled, TokenIds
from mrl.rollout.opening import open_engine
from mrl.seeds import derive
from mrl.tasks import Item
from mrl.tokens import ContentEncoder, Unrepresentable
from mrl.tokens.segments import SegmentEncoder, StructuralTokens

OPTIMIZERS = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}


@dataclass(eq=False)
class Policy:
    """One of the policies that train together.

    Parameters
    ----------
    name : str
        Name in records and metrics.
    model : torch.nn.Module
        Causal language model, called as the transformers library's models are.
    tokenizer : transformers fast tokenizer
        The model's own.
    probe : Probe
        How peers' experience becomes credit.
    sampling, objective, optimizer : SamplingConfig, ObjectiveConfig, OptimizerConfig
        Settings.
    template : {"auto", "chat", "plain"}
        How messages become a prompt.
    segments : mapping of str to str, or "auto"
        Structural tokens of its responses; see `mrl.tokens.segments.StructuralTokens.of`.
    engine : EngineConfig
        What samples its responses.
    """

    name: str
    model: Any
    tokenizer: Any
    probe: Probe
    sampling: SamplingConfig
    objective: ObjectiveConfig
    optimizer: OptimizerConfig
    template: str = "auto"
    segments: Mapping[str, str] | str = "auto"
    engine: EngineConfig = HFEngineConfig()

    def __post_init__(self) -> None:
        self.content = ContentEncoder.of(self.tokenizer)
        self.table = self.content.table
        structure = StructuralTokens.of(self.tokenizer, self.segments)
        self.codec = SegmentEncoder(self.content, structure)
        self.eos_id: int | None = self.tokenizer.eos_token_id
        pad_id = self.tokenizer.pad_token_id
        self.pad_id: int = pad_id if pad_id is not None else (self.eos_id or 0)
        self.parameters = [p for p in self.model.parameters() if p.requires_grad]
        settings: dict[str, Any] = {
            "lr": self.optimizer.lr,
            "weight_decay": self.optimizer.weight_decay,
        }
        if self.optimizer.kind == "adamw":
            settings["betas"] = self.optimizer.betas
        self.optim = OPTIMIZERS[self.optimizer.kind](self.parameters, **settings)
        warmup = self.optimizer.warmup_rounds
        self.schedule = torch.optim.lr_scheduler.LambdaLR(
            self.optim, lambda done: min(1.0, (done + 1) / (warmup + 1))
        )
        self._prompts: dict[str, tuple[int, ...]] = {}
        self._engine = open_engine(self.engine, self.model, self._decoding(), self._score_pairs)

    def _decoding(self) -> Decoding:
        return Decoding(
            max_tokens=self.sampling.max_tokens,
            eos_id=self.eos_id,
            pad_id=self.pad_id,
            vocabulary=len(self.table),
            temperature=self.sampling.temperature,
            top_p=self.sampling.top_p,
            batch=self.sampling.batch,
        )

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return self.parameters[0].device

    def render(self, item: Item, /) -> tuple[int, ...]:
        """Token ids of an item's prompt by this policy's own template.

        Raises
        ------
        InputError
            If the tokenizer cannot render the prompt, or prompt and longest response do not fit
            the model's context.
        """
        if item.prompt_id not in self._prompts:
            try:
                ids = self._tokens_of(item)
            except Exception as error:  # the tokenizers library raises nothing more specific
                raise InputError(
                    f"prompt {item.prompt_id} ({item.question[:60]!r}) cannot be rendered by "
                    f"policy {self.name!r} with template {self.template!r}: {error}; expected a "
                    "question that its tokenizer can spell and, for 'chat', one with a chat "
                    "template"
                ) from None
            self._check_prompt(item, ids)
            self._prompts[item.prompt_id] = ids
        return self._prompts[item.prompt_id]

    def _tokens_of(self, item: Item, /) -> tuple[int, ...]:
        chat = self.template == "chat" or (
            self.template == "auto" and self.tokenizer.chat_template is not None
        )
        if chat:
            text = self.tokenizer.apply_chat_template(
                item.messages, tokenize=False, add_generation_prompt=True
            )
        else:
            text = "".join(message["content"] for message in item.messages)
        return tuple(self.tokenizer(text, add_special_tokens=not chat)["input_ids"])

    def _check_prompt(self, item: Item, ids: tuple[int, ...], /) -> None:
        if not ids:
            raise InputError(f"prompt {item.prompt_id} is empty for policy {self.name!r}")
        limit = getattr(self.model.config, "max_position_embeddings", None)
        if limit is not None and len(ids) + self.sampling.max_tokens > limit:
            raise InputError(
                f"prompt {item.prompt_id} has {len(ids)} tokens for policy {self.name!r}; with "
                f"sampling.max_tokens={self.sampling.max_tokens} that exceeds the model's context "
                f"of {limit}; shorten the prompt or lower max_tokens"
            )

    def generate(self, items: Sequence[Item], n: int, seed: int, /) -> list[list[Rollout]]:
        """Sample `n` responses for each item; a function of weights, items and seed."""
        groups = self._engine.generate([self.render(item) for item in items], n, seed)
        self._check_samples(groups)
        return [[self._rollout(one) for one in group] for group in groups]

    def sync(self) -> dict[str, float]:
        """Give the engine the model's weights after they changed; figures of the check.

        Raises
        ------
        RunError
            If the engine did not take them over.
        """
        return self._engine.sync(self.model)

    def close(self) -> None:
        """Stop the engine; nothing can be generated afterwards."""
        self._engine.close()

    def _rollout(self, one: Sampled, /) -> Rollout:
        text, segments = self.codec.spell(one.ids[: len(one.ids) - one.finished])
        return Rollout(one.ids, one.logprobs, one.finished, text, segments)

    def _check_samples(self, groups: Sequence[Sequence[Sampled]], /) -> None:
        """Single missing log-probs are left out of the loss; none at all is a broken model."""
        if all(np.isnan(one.logprobs).all() for group in groups for one in group):
            raise RunError(
                f"policy {self.name!r}: no sampled token has a finite log-probability, so its "
                "weights are not finite or far too large; lower the learning rate and start from "
                "weights that were sound"
            )

    def text(self, ids: Sequence[int], finished: bool, /) -> bytes:
        """Bytes of a response without its end token."""
        return self.codec.spell(ids[: len(ids) - finished])[0]

    def encode(
        self, texts: Sequence[bytes], segments: Sequence[Sequence[Segment]] | None = None, /
    ) -> list[tuple[int, ...] | Unrepresentable]:
        """Canonical token ids of responses, or why there are none.

        Parameters
        ----------
        texts : sequence of bytes
            Responses without end tokens.
        segments : sequence of sequence of Segment, optional
            Structural segments that this policy accepts in each; all else is plain content.
        """
        return [
            ids if isinstance(ids, Unrepresentable) else tuple(ids.tolist())
            for ids in self.codec.encode_batch(texts, segments)
        ]

    def ended(self, ids: Sequence[int], finish_reason: str, /) -> tuple[int, ...]:
        """Ids of a response with this policy's end token, where its source ended it."""
        if finish_reason == "eos" and self.eos_id is not None:
            return (*ids, self.eos_id)
        return tuple(ids)

    def canonical(self, rollouts: Sequence[Rollout], /) -> list[bool]:
        """Whether each response's sampled tokens are what its text segments encode to."""
        ids = [one.ids[: len(one.ids) - one.finished] for one in rollouts]
        return self.codec.canonical_batch(ids).tolist()

    @torch.inference_mode()
    def score(self, rows: Sequence[Row], /, *, whole: bool = False) -> list[NDArray[np.float64]]:
        """Log-probabilities of each row's response tokens at the sampling distribution.

        With `whole`, at the same distribution without truncation.
        """
        found: dict[int, NDArray[np.float64]] = {}
        for places in batches_of(rows, self.objective.batch_tokens):
            batch = collate(places, [1.0] * len(places), self.pad_id, self.device)
            values_NR = self.logprobs(batch)[whole].double().cpu().numpy()
            for row, n in zip(batch.rows, batch.place_M, strict=True):
                found[id(row)] = values_NR[n, : len(row.response)]
        return [found[id(row)] for row in rows]

    def _score_pairs(
        self, pairs: Sequence[tuple[TokenIds, TokenIds]], /
    ) -> list[NDArray[np.float64]]:
        return self.score([Row(0, tuple(p), tuple(r), 1.0) for p, r in pairs], whole=True)

    def logprobs(self, batch: Batch, /) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probabilities at the distribution of `generate`, and the same not truncated."""
        sampling = self.sampling
        return response_logprobs(
            self.model, batch, sampling.temperature, len(self.table), sampling.top_p
        )


def build_policy(config: PolicyConfig, run: RunConfig, /, *, seed: int) -> Policy:
    """Load or create a policy's model and tokenizer.

    Raises
    ------
    InputError
        If a folder, tokenizer or setting is missing or does not fit.
    """
    from mrl.models import load_model, load_tokenizer

    tokenizer = load_tokenizer(config)
    return Policy(
        name=config.name,
        model=load_model(config, tokenizer, seed=seed).to(_device(run.device)),
        tokenizer=tokenizer,
        probe=run.probe_of(config),
        sampling=run.sampling,
        objective=run.objective_of(config),
        optimizer=config.optimizer,
        template=config.template,
        segments=config.segments,
        engine=config.engine,
    )


def _device(name: str, /) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise InputError(f"device={name!r} is no device; expected cpu, cuda or auto") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InputError(f"device={name!r}, but no CUDA device is available; expected cpu or auto")
    return device


def build_policies(run: RunConfig, /) -> list[Policy]:
    """All policies of a run; random weights are a function of the run's seed and their names."""
    return [build_policy(one, run, seed=derive(run.seed, "init", one.name)) for one in run.policies]


@contextmanager
def engines(policies: Sequence[Policy], /) -> Iterator[None]:
    """Stop the engines of `policies` when the body ends, however it ends."""
    with ExitStack() as stack:
        for policy in policies:
            stack.callback(policy.close)
        yield


def save_weights(policy: Policy, folder: Path, /) -> None:
    """Write weights and tokenizer as `from_pretrained` reads them."""
    from transformers.utils import logging

    # Its progress bar would break the run's own.
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        policy.model.save_pretrained(folder)
        policy.tokenizer.save_pretrained(folder)
    finally:
        if shown:
            logging.enable_progress_bar()
