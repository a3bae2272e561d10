"""A policy: model, tokenizer, optimizer, and the sharing rule it learns by."""

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from bandit.probes import Probe
from mrl.adapters import has_adapters, without_adapters
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
from mrl.distributed import each
from mrl.errors import InputError, PromptTooLong, RunError
from mrl.exchange.fields import Segment
from mrl.loss import response_logprobs
from mrl.memory import memory_for
from mrl.optimizers import optimizer_of
from mrl.rollout import Decoding, Engine, Prompts, Rollout, Sampled, TokenIds
from mrl.rollout.opening import open_engine
from mrl.seeds import derive
from mrl.tasks import Item
from mrl.tokens import Unrepresentable
from mrl.tokens.segments import SegmentEncoder

# Of truncated importance sampling between engine and trainer, where an engine has its own weights.
ENGINE_CAP = 2.0


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
    rounds : int, optional
        Rounds of the run, where the learning rate falls to 0 at its end.
    autocast : torch.dtype, optional
        Compute with parameters rounded to this type. Default: with the parameters as they are.
    elsewhere : Engine, optional
        Samples the responses, on other devices. Default: an engine of its own, by `engine`.

    Where the objective has a divergence term, the weights of `model` as they are now are the
    reference: those under the adapters if it has some, else a frozen copy. A checkpoint does not
    hold them: a resumed run makes them again as it did at first.
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
    rounds: int | None = None
    autocast: torch.dtype | None = None
    elsewhere: Engine | None = None

    def __post_init__(self) -> None:
        self.codec = SegmentEncoder.of(self.name, self.tokenizer, self.segments)
        self.content = self.codec.content
        self.table = self.content.table
        self.eos_id: int | None = self.tokenizer.eos_token_id
        pad_id = self.tokenizer.pad_token_id
        self.pad_id: int = pad_id if pad_id is not None else (self.eos_id or 0)
        self.parameters = [p for p in self.model.parameters() if p.requires_grad]
        self.optim, self.schedule = optimizer_of(self.parameters, self.optimizer, self.rounds)
        self.reference: Any = None
        if self.objective.kl and not has_adapters(self.model):
            self.reference = copy.deepcopy(self.model).eval().requires_grad_(False)
        self._prompts: dict[str, tuple[int, ...]] = {}
        self._engine = self.elsewhere or open_engine(
            self.engine, self.model, self._decoding(), self._score_pairs
        )

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
    def engine_cap(self) -> float | None:
        """Cap of the weights that correct for the engine's own probabilities; None: no weights."""
        cap = self.objective.engine_correction
        if cap == "auto":
            return None if self.engine.kind == "hf" else ENGINE_CAP
        return cap

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
            the model's context (`PromptTooLong`).
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
            text = "\n\n".join(message["content"] for message in item.messages)
        return tuple(self.tokenizer(text, add_special_tokens=not chat)["input_ids"])

    def _check_prompt(self, item: Item, ids: tuple[int, ...], /) -> None:
        if not ids:
            raise InputError(f"prompt {item.prompt_id} is empty for policy {self.name!r}")
        limit = getattr(self.model.config, "max_position_embeddings", None)
        if limit is not None and len(ids) + self.sampling.max_tokens > limit:
            raise PromptTooLong(
                f"prompt {item.prompt_id} has {len(ids)} tokens for policy {self.name!r}; with "
                f"sampling.max_tokens={self.sampling.max_tokens} that exceeds the model's context "
                f"of {limit}; shorten the prompt, lower max_tokens, or leave such prompts out with "
                "task.too_long=skip"
            )

    def too_long(self, items: Sequence[Item], /) -> dict[str, str]:
        """Ids of the items whose prompt exceeds the model's context, and why.

        Raises
        ------
        InputError
            If a prompt cannot be rendered.
        """
        found = {}
        for item in items:
            try:
                self.render(item)
            except PromptTooLong as error:
                found[item.prompt_id] = str(error)
        return found

    def generate(self, items: Sequence[Item], n: int, seed: int, /) -> list[list[Rollout]]:
        """Sample `n` responses for each item; a function of weights, items and seed."""
        groups = self.sample([self.render(item) for item in items], n, seed)
        self._check_samples(groups)
        return [[self._rollout(one) for one in group] for group in groups]

    def sample(self, prompts: Prompts, n: int, seed: int, /) -> list[list[Sampled]]:
        """Sample `n` responses for each prompt; a function of weights, prompts and seed."""
        with (
            memory_for(f"while policy {self.name!r} samples", "lower sampling.batch"),
            self.computing(),
        ):
            return self._engine.generate(prompts, n, seed)

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
        spelled = [(one.text, one.segments) for one in rollouts]
        return self.codec.canonical_batch(ids, spelled).tolist()

    @torch.inference_mode()
    def score(self, rows: Sequence[Row], /) -> list[NDArray[np.float64]]:
        """Log-probabilities of each row's response tokens at the sampling distribution.

        Without dropout, as responses are sampled.
        """
        batches = list(batches_of(rows, self.objective.batch_tokens))
        with self._scoring():
            scores = each(lambda _, places: self._score(places, 0), batches)
        return _in_order_of(rows, batches, scores)

    @torch.inference_mode()
    def _score_pairs(
        self, pairs: Sequence[tuple[TokenIds, TokenIds]], /
    ) -> list[NDArray[np.float64]]:
        """Scores without truncation, by this process alone: what its own engine is held to."""
        rows = [Row(0, tuple(prompt), tuple(response), 1.0) for prompt, response in pairs]
        batches = list(batches_of(rows, self.objective.batch_tokens))
        with self._scoring():
            return _in_order_of(rows, batches, [self._score(places, 1) for places in batches])

    @contextmanager
    def _scoring(self) -> Iterator[None]:
        was_training = self.model.training
        self.model.eval()
        try:
            with memory_for(f"while policy {self.name!r} scores", "lower objective.batch_tokens"):
                yield
        finally:
            self.model.train(was_training)

    def _score(
        self, places: Sequence[list[Row]], which: Literal[0, 1], /
    ) -> list[NDArray[np.float64]]:
        """Scores of the rows of a batch, by one of the two distributions of `logprobs`."""
        batch = collate(places, [1.0] * len(places), self.pad_id, self.device)
        values_NR = self.logprobs(batch)[which].double().cpu().numpy()
        return [
            values_NR[n, : len(row.response)]
            for row, n in zip(batch.rows, batch.place_M, strict=True)
        ]

    def logprobs(self, batch: Batch, /) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probabilities at the distribution of `generate`, and the same not truncated."""
        sampling = self.sampling
        with self.computing():
            return response_logprobs(
                self.model, batch, sampling.temperature, len(self.table), sampling.top_p
            )

    @contextmanager
    def computing(self) -> Iterator[None]:
        """In the policy's precision, the same for sampling, scoring and training."""
        with ExitStack() as stack:
            if self.autocast is not None:
                stack.enter_context(torch.autocast(self.device.type, self.autocast))
            yield

    @torch.no_grad()
    def reference_logprobs(self, batch: Batch, /) -> torch.Tensor:
        """Log-probabilities (N, R) by the initial weights, not truncated.

        Raises
        ------
        ValueError
            If neither a copy of them was kept (`objective.kl`) nor adapters are on them.
        """
        settings = batch, self.sampling.temperature, len(self.table)
        with self.computing():
            if self.reference is not None:
                return response_logprobs(self.reference, *settings)[1]
            with without_adapters(self.model):
                return response_logprobs(self.model, *settings)[1]


def _in_order_of(
    rows: Sequence[Row],
    batches: Sequence[Sequence[list[Row]]],
    scores: Sequence[Sequence[NDArray[np.float64]]],
    /,
) -> list[NDArray[np.float64]]:
    """Scores of batches in the order of the rows that they hold."""
    order = [id(row) for places in batches for place in places for row in place]
    found = dict(zip(order, (one for part in scores for one in part), strict=True))
    return [found[id(row)] for row in rows]


def build_policy(
    config: PolicyConfig,
    run: RunConfig,
    /,
    *,
    seed: int | None = None,
    elsewhere: Engine | None = None,
) -> Policy:
    """Load or create a policy's model and tokenizer.

    Parameters
    ----------
    config : PolicyConfig
        The policy.
    run : RunConfig
        Its run.
    seed : int, optional
        Of random weights. Default: a function of the run's seed and the policy's name.
    elsewhere : Engine, optional
        See `Policy`.

    Raises
    ------
    InputError
        If a folder, tokenizer or setting is missing or does not fit.
    """
    from mrl.models import device_of, load_model, load_tokenizer

    tokenizer, device = load_tokenizer(config), device_of(run.device)
    low = config.precision == "bfloat16" or (
        config.precision == "auto" and device.type == "cuda" and config.model.dtype == "float32"
    )
    seed = derive(run.seed, "init", config.name) if seed is None else seed
    return Policy(
        name=config.name,
        model=load_model(config, tokenizer, seed=seed).to(device),
        tokenizer=tokenizer,
        probe=run.probe_of(config),
        sampling=run.sampling_of(config),
        objective=run.objective_of(config),
        optimizer=config.optimizer,
        template=config.template,
        segments=config.segments,
        engine=config.engine,
        rounds=run.rounds,
        autocast=torch.bfloat16 if low else None,
        elsewhere=elsewhere,
    )


def build_policies(run: RunConfig, /) -> list[Policy]:
    """All policies of a run."""
    return [build_policy(one, run) for one in run.policies]


@contextmanager
def engines(policies: Sequence[Policy], /) -> Iterator[None]:
    """Stop the engines of `policies` when the body ends, however it ends."""
    with ExitStack() as stack:
        for policy in policies:
            stack.callback(policy.close)
        yield


def save_weights(policy: Policy, folder: Path, /) -> None:
    """Write weights, of adapters these alone, and tokenizer as `from_pretrained` reads them."""
    from mrl.models import quiet

    # Adapters leave the embeddings alone; peft would ask the hub whether they were resized.
    more = {"save_embedding_layers": False} if has_adapters(policy.model) else {}
    with quiet():
        policy.model.save_pretrained(folder, **more)
        policy.tokenizer.save_pretrained(folder)
