"""The schema of study, gate and training runs: what can be set, to what, and why.

Sections are told apart by ``kind``; every setting has its docstring.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    model_validator,
)

from bandit.probes import Probe, probe_from_config, probe_to_config

# Names that TRL and verl give to the same aggregations.
AGGREGATION_ALIASES = {
    "dapo": "token",
    "token-mean": "token",
    "grpo": "sequence",
    "seq-mean-token-mean": "sequence",
    "seq-mean-token-sum": "sum",
}


class Section(BaseModel):
    """Base of all sections: unknown keys are errors, values cannot be changed afterwards."""

    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)


def _probe(value: Any) -> Probe:
    if isinstance(value, Probe):
        return value
    if not isinstance(value, Mapping):
        raise ValueError(f"got {value!r}; expected a mapping with the key 'kind'")
    return probe_from_config(value)


ProbeField = Annotated[
    Probe, BeforeValidator(_probe), PlainSerializer(probe_to_config, return_type=dict)
]


class GroupConfig(Section):
    """How many rollouts a prompt."""

    own: int = Field(8, ge=2)
    """Rollouts of each policy a prompt (G). One alone has no advantage, so at least 2."""
    peers: int | dict[str, Annotated[int, Field(ge=0)]] = 8
    """Rollouts seen of each peer a prompt (M_j): one number, or one a peer by name."""
    redraws: int = Field(0, ge=0)
    """Dynamic sampling: redraw a group without reward variance at most this often."""

    @model_validator(mode="after")
    def _peers(self) -> "GroupConfig":
        if isinstance(self.peers, int) and self.peers < 0:
            raise ValueError(f"peers={self.peers} is not allowed; expected a number >= 0")
        return self


class SamplingConfig(Section):
    """How responses are sampled; the same in training and in the importance ratios."""

    max_tokens: int = Field(64, ge=1)
    """Longest response in the sampling policy's own tokens, EOS included."""
    temperature: float = Field(1.0, gt=0)
    """Softmax temperature, used on both sides: for sampling and for scoring."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Nucleus sampling: of each token's distribution the smallest set of most probable tokens
    with at least this mass is kept. Used on both sides too: the truncated distribution is the
    policy that is trained. Likelihood terms are not truncated."""
    batch: int = Field(512, ge=1)
    """Rows generated at a time; bounds memory."""


class ObjectiveConfig(Section):
    """The token-level loss."""

    aggregation: Literal["token", "sequence", "sum"] = "token"
    """How log pi(response) is formed from tokens: ``sum``; ``sequence`` (divided by its own
    length); ``token`` (divided by the mean length of the update)."""
    clip_low: float = Field(0.2, ge=0, lt=1)
    """Lower clip of the within-policy ratio: 1 - clip_low."""
    clip_high: float = Field(0.28, ge=0)
    """Upper clip of the within-policy ratio: 1 + clip_high."""
    updates: int = Field(1, ge=1)
    """Optimizer steps a round; the prompts of a round are split evenly over them."""
    mask_truncated: bool = False
    """Leave responses that did not end by EOS out of loss and length."""
    batch_tokens: int = Field(16384, ge=1)
    """Padded tokens a micro-batch; bounds memory and changes no gradient."""

    @model_validator(mode="before")
    @classmethod
    def _aliases(cls, values: Any) -> Any:
        if isinstance(values, Mapping) and values.get("aggregation") in AGGREGATION_ALIASES:
            return {**values, "aggregation": AGGREGATION_ALIASES[values["aggregation"]]}
        return values


class OptimizerConfig(Section):
    """The optimizer of one policy."""

    kind: Literal["adamw", "sgd"] = "adamw"
    """AdamW, or plain gradient descent."""
    lr: float = Field(1e-6, gt=0)
    """Learning rate."""
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = (
        0.9,
        0.999,
    )
    """Decay rates of AdamW's moments."""
    weight_decay: float = Field(0.0, ge=0)
    """Decoupled weight decay."""
    warmup_rounds: int = Field(0, ge=0)
    """Rounds over which the learning rate grows linearly to `lr`."""
    max_grad_norm: float | None = Field(1.0, gt=0)
    """Global gradient-norm clip; null: none."""


class CharacterTokenizer(Section):
    """One token a character."""

    kind: Literal["characters"]
    alphabet: str = Field(min_length=1)
    """Every character that a text may hold."""


class BPETokenizer(Section):
    """Byte-pair encoding learned from a text file."""

    kind: Literal["bpe"]
    path: str
    """Text file, one text a line."""
    vocab_size: int = Field(ge=2)
    """Entries, special tokens included."""
    byte_level: bool = False
    """Merge bytes, so that any text can be written, or the characters of the file."""


class PretrainedTokenizer(Section):
    """A tokenizer from a folder, a published package or a hub id."""

    kind: Literal["pretrained"]
    path: str
    """Local folder, a name of `mrl.published`, or hub id; the first that there is."""


TokenizerConfig = Annotated[
    CharacterTokenizer | BPETokenizer | PretrainedTokenizer, Field(discriminator="kind")
]


class PretrainedModel(Section):
    """Weights from a folder, a published package or a hub id."""

    kind: Literal["pretrained"]
    path: str
    """Local folder, a name of `mrl.published`, or hub id; the first that there is."""
    dtype: Literal["float64", "float32", "bfloat16"] = "float32"
    """Parameter type."""


class InitModel(Section):
    """A decoder with random weights, for demonstrations and tests."""

    kind: Literal["init"]
    model_type: str = "llama"
    """Architecture name of the transformers library."""
    params: dict[str, Any] = {}
    """Settings of that architecture; vocabulary and special ids come from the tokenizer."""
    dtype: Literal["float64", "float32", "bfloat16"] = "float32"
    """Parameter type."""


ModelConfig = Annotated[PretrainedModel | InitModel, Field(discriminator="kind")]


class PolicyConfig(Section):
    """One policy: its model, tokenizer, optimizer, and what it does differently from the run."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")
    """Name in records, metrics and folders."""
    model: ModelConfig
    """Where the weights come from."""
    tokenizer: TokenizerConfig | None = None
    """Default: the tokenizer in the model's folder."""
    template: Literal["auto", "chat", "plain"] = "auto"
    """How messages become a prompt: the tokenizer's chat template, or their bare content.
    ``auto``: the chat template where the tokenizer has one."""
    segments: Literal["auto"] | dict[Annotated[str, Field(min_length=1)], str] = "auto"
    """Structural tokens inside responses, the text of one token for each kind, for example
    ``{think_open: "<think>", think_close: "</think>"}``. ``auto``: those of the common think and
    tool marks that are among the tokenizer's added tokens; ``{}``: none."""
    optimizer: OptimizerConfig = OptimizerConfig()
    """Own optimizer and learning rate."""
    objective: ObjectiveConfig | None = None
    """Own objective; default: the run's."""
    probe: ProbeField | None = None
    """Own sharing rule; default: the run's."""

    @model_validator(mode="after")
    def _tokenizer(self) -> "PolicyConfig":
        if self.tokenizer is None and self.model.kind == "init":
            raise ValueError(
                f"policy {self.name!r} has a model with random weights and no tokenizer; "
                "add a 'tokenizer' section (kind: characters, bpe or pretrained)"
            )
        return self


class JsonlTask(Section):
    """Questions and answers from files of the user's own, one JSON object a line."""

    kind: Literal["jsonl"]
    path: str
    """File of training items; held-out items are split off where `eval_path` is not given."""
    eval_path: str | None = None
    """File of held-out items."""
    question: str = "question"
    """Key of the question."""
    answer: str = "answer"
    """Key of the right answer."""
    tag: str | None = None
    """Key of a label by which evaluation is split, for example the skill."""
    verifier: Literal["exact", "numeric"] = "exact"
    """``exact``: the response is the answer, surrounding space aside. ``numeric``: the last
    number in the response equals the answer as a number."""
    eval_share: float = Field(0.2, gt=0, lt=1)
    """Share held out where `eval_path` is not given; which items is fixed by the seed."""


class ReasoningGymTask(Section):
    """A procedurally generated task of the reasoning-gym library."""

    kind: Literal["reasoning_gym"]
    name: str
    """Name of the dataset in reasoning-gym."""
    params: dict[str, Any] = {}
    """Its settings."""
    size: int = Field(1000, ge=1)
    """Training items."""
    eval_size: int = Field(200, ge=1)
    """Held-out items; those also among the training items are left out."""
    verifier: Literal["own", "exact", "numeric"] = "own"
    """``own``: the dataset's scorer, which mostly wants the bare answer. ``exact`` and ``numeric``
    are those of a jsonl task; ``numeric`` also takes an answer in a sentence."""


TaskConfig = Annotated[JsonlTask | ReasoningGymTask, Field(discriminator="kind")]


class ExchangeConfig(Section):
    """How typed experience travels between policies."""

    store: Literal["memory", "sqlite"] = "memory"
    """In memory, or durable in the run's folder."""
    max_staleness: int = Field(0, ge=0)
    """Oldest record used, in rounds behind the current one."""
    reverify: bool = True
    """A receiver checks peers' texts with its own verifier before it uses them."""
    residual_sample: int = Field(64, ge=0)
    """Rollouts a round of which a source measures its canonicality residual, where peers ask for
    its rollouts: those among them that are not canonical are scored once more. 0: none."""


class EvaluationConfig(Section):
    """Evaluation on held-out prompts."""

    every: int = Field(0, ge=0)
    """Rounds between evaluations; 0: only before the first round and after the last."""
    items: int = Field(200, ge=1)
    """Held-out items used, the first of the split."""
    samples: int = Field(8, ge=1)
    """Responses a prompt."""
    ks: tuple[Annotated[int, Field(ge=1)], ...] = (1, 8)
    """The k of pass@k; none above `samples`."""

    @model_validator(mode="after")
    def _ks(self) -> "EvaluationConfig":
        if max(self.ks, default=1) > self.samples:
            raise ValueError(
                f"ks={self.ks} asks for pass@{max(self.ks)} from samples={self.samples}; "
                "expected no k above samples"
            )
        return self


class CheckpointConfig(Section):
    """Checkpoints in the run's folder."""

    every: int = Field(50, ge=1)
    """Rounds between checkpoints; the last round always has one."""
    keep: int = Field(2, ge=1)
    """Newest checkpoints kept."""


class GateConfig(Section):
    """The toy regime in which a probe is validated, and what it must hold."""

    success: tuple[tuple[Annotated[float, Field(ge=0, le=1)], ...], ...] = (
        (0.95, 0.02),
        (0.02, 0.9),
    )
    """Success probability of each policy (rows) on each kind of prompt (columns)."""
    arms: int = Field(16, ge=4)
    """Responses a prompt in the toy worlds."""
    draws: int = Field(20_000, ge=1000)
    """Monte-Carlo draws against the closed forms."""
    steps: int = Field(150, ge=1)
    """Steps of toy training."""
    replicas: int = Field(32, ge=4)
    """Seeds of toy training."""
    lr: float = Field(0.05, gt=0)
    """Learning rate of toy training; plain gradient descent wants about 1."""
    max_stability_cost: float | None = Field(None, gt=0)
    """Bound on the population's tr Cov(g) relative to GRPO's; null: reported only."""
    min_support_gain: float | None = None
    """Bound on the population's support gain; null: reported only."""
    max_collapse: float = Field(0.1, ge=0, le=1)
    """Largest share of toy runs whose value may fall by 0.2 below its best."""
    min_rescue_gain: float = 0.05
    """Least gain over GRPO on the rescue set, for a probe that claims support."""
    text_bytes: int = Field(4, ge=3, le=5)
    """Longest response, in bytes, of the toy policies that write text."""
    canonical_share: float = Field(0.9, gt=0, lt=1)
    """How often they sample the canonical tokens of what they write, where their tokenizer leaves
    a choice; `mrl tokens audit` measures it on rollouts."""
    max_residual: float = Field(1.0, ge=0)
    """Bound on the 99% quantile of the error of the log-ratio, in nats, over peers' rollouts that
    have a weight; a ratio that is not gated does not hold the default."""
    min_token_cosine: float = Field(0.9, ge=-1, le=1)
    """Least cosine between what the gated sequence ratio makes of a peer's rollouts and the true
    gradient; what is missing is the receiver's share of other than canonical responses, and what
    a cap cuts off."""
    min_length_cosine: float | None = Field(None, ge=-1, le=1)
    """Bound on the cosine to the true gradient in the length world, at the run's longest responses
    (64 tokens at most); null: reported only."""

    @model_validator(mode="after")
    def _success(self) -> "GateConfig":
        if len(self.success) < 1 or len({len(row) for row in self.success}) != 1:
            raise ValueError(
                "success must hold one row a policy, all of equal length, "
                f"one entry a kind of prompt; got {self.success}"
            )
        return self


class RunConfig(Section):
    """A run: what is shared, who trains on what, and how it is checked."""

    name: str = Field("run", pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")
    """Name of the run and of its folder."""
    seed: int = Field(0, ge=0)
    """Every result is a function of the configuration and this number."""
    output: str = "runs"
    """Folder that holds the run's folder."""
    rounds: int = Field(100, ge=1)
    """Rounds of training."""
    prompts: int = Field(32, ge=1)
    """Prompts a round, the same for all policies."""
    device: str = "auto"
    """``cpu``, ``cuda``, or ``auto``: cuda where there is one."""
    probe: ProbeField
    """The sharing rule."""
    group: GroupConfig = GroupConfig()
    """Group sizes."""
    task: TaskConfig
    """Prompts and verifier."""
    policies: tuple[PolicyConfig, ...] = Field(min_length=1)
    """The policies that train together."""
    sampling: SamplingConfig = SamplingConfig()
    """How responses are sampled."""
    objective: ObjectiveConfig = ObjectiveConfig()
    """The loss."""
    exchange: ExchangeConfig = ExchangeConfig()
    """How experience travels."""
    evaluation: EvaluationConfig = EvaluationConfig()
    """Evaluation."""
    checkpoint: CheckpointConfig = CheckpointConfig()
    """Checkpoints."""
    gate: GateConfig = GateConfig()
    """Validation before promotion."""
    certificate: dict[str, Any] | None = None
    """Written by ``mrl promote``: what the gate found for this probe and these settings."""

    @model_validator(mode="after")
    def _names(self) -> "RunConfig":
        names = [policy.name for policy in self.policies]
        if len(set(names)) != len(names):
            raise ValueError(f"policies must have different names; got {names}")
        if isinstance(self.group.peers, dict):
            unknown = sorted(set(self.group.peers) - set(names))
            if unknown:
                raise ValueError(f"group.peers names {unknown}; expected any of {names}")
        for policy in self.policies:
            self._check_peers(policy)
        return self

    def _check_peers(self, policy: PolicyConfig, /) -> None:
        """A peer has `own` rollouts to give; of its statistics there is no half."""
        own, probe = self.group.own, self.probe_of(policy)
        if not probe.needs:
            return
        whole = "group_stats" in probe.needs
        for name, n in self.peers_of(policy.name).items():
            if n > own or (whole and n not in (0, own)):
                allowed = f"0 or {own}" if whole else f"at most {own}"
                raise ValueError(
                    f"group.peers asks {probe.kind} of policy {policy.name!r} for {n} rollouts of "
                    f"{name!r}, which has group.own={own}; expected {allowed}"
                )

    @property
    def folder(self) -> Path:
        """The run's folder."""
        return Path(self.output) / self.name

    def probe_of(self, policy: PolicyConfig, /) -> Probe:
        """The sharing rule of one policy."""
        return policy.probe or self.probe

    def objective_of(self, policy: PolicyConfig, /) -> ObjectiveConfig:
        """The objective of one policy."""
        return policy.objective or self.objective

    def peers_of(self, receiver: str, /) -> dict[str, int]:
        """Rollouts that `receiver` sees of each other policy a prompt."""
        peers = self.group.peers
        others = [policy.name for policy in self.policies if policy.name != receiver]
        return {name: peers.get(name, 0) if isinstance(peers, dict) else peers for name in others}
