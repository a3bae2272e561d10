"""The schema of study, gate and training runs: what can be set, to what, and why.

Sections are told apart by ``kind``; every setting has its docstring.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from bandit.probes import Probe
from mrl.config.base import ProbeField, Section
from mrl.config.gating import GateConfig
from mrl.config.logs import LoggingConfig
from mrl.config.objective import ObjectiveConfig
from mrl.config.policies import PolicyConfig
from mrl.config.rollouts import GroupConfig, SamplingConfig
from mrl.config.tasks import TaskConfig

RecordKind = Literal["rollout", "group_stats", "success"]


class ExchangeConfig(Section):
    """How typed experience travels between policies."""

    store: Literal["memory", "sqlite"] = "memory"
    """In memory, or durable in the run's folder."""
    max_staleness: int = Field(0, ge=0)
    """Oldest record used, in rounds behind the current one."""
    barrier_timeout: float = Field(600.0, ge=0, le=1e6)
    """Seconds to wait until all policies have published their round; then it goes on without those
    that have not, which the metrics name (``absent_peers``). In one process none is waited for."""
    quota: Annotated[int, Field(ge=0)] | dict[str, Annotated[int, Field(ge=0)]] | None = None
    """Records a round that a policy may publish, one number or by policy; more are refused and
    counted. A policy that is not named, and null: as many as it likes."""
    reverify: bool = True
    """A receiver checks peers' texts with its own verifier before it uses them."""
    residual_sample: int = Field(64, ge=0)
    """Rollouts a round of which a source measures its canonicality residual, where peers ask for
    its rollouts: those among them that are not canonical are scored once more. 0: none."""
    keep: tuple[RecordKind, ...] = ()
    """Records that are published although no peer asks for them; with any, the records of all
    rounds stay in the file, for replay and audits. Needs ``store: sqlite``."""
    replay: str | None = None
    """Folder of a finished run whose policies stand in as peers by the records that it kept."""
    replay_policies: tuple[str, ...] | None = None
    """Those of its policies that do; null: all. None may have the name of a policy here."""

    @model_validator(mode="after")
    def _kept(self) -> "ExchangeConfig":
        if self.keep and self.store != "sqlite":
            raise ValueError(
                f"keep={list(self.keep)} with store={self.store!r}; expected store=sqlite: what is "
                "in memory is gone when the run ends"
            )
        if self.replay is None and self.replay_policies is not None:
            raise ValueError(
                f"replay_policies={list(self.replay_policies)} without replay; expected the folder "
                "of a run there"
            )
        return self


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
    best: str | None = None
    """A figure of the evaluations, for example ``pass@1``: after each scheduled evaluation that
    raises its mean over policies there is a checkpoint, and the best one is kept. null: none."""


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
    logging: LoggingConfig = LoggingConfig()
    """Where figures go besides ``metrics.jsonl``."""
    gate: GateConfig = GateConfig()
    """Validation before promotion."""
    certificate: dict[str, Any] | None = None
    """Written by ``mrl promote``: what the gate found for this probe and these settings."""

    @model_validator(mode="before")
    @classmethod
    def _inherit(cls, values: Any) -> Any:
        """What a policy's own section leaves out is as in the run's."""
        if not isinstance(values, Mapping) or not isinstance(values.get("policies"), Sequence):
            return values
        policies = [_inherited(policy, values) for policy in values["policies"]]
        return {**values, "policies": policies}

    @model_validator(mode="after")
    def _names(self) -> "RunConfig":
        names = [policy.name for policy in self.policies]
        if len(set(names)) != len(names):
            raise ValueError(f"policies must have different names; got {names}")
        if taken := sorted(set(names) & set(self.replayed)):
            raise ValueError(
                f"exchange.replay has policies {taken}, and so has this run; rename them here, or "
                "name others of the stored run in exchange.replay_policies"
            )
        # Which policies a replayed run has is known when it is read: see mrl.replay.resolve.
        known = self.exchange.replay is None or self.exchange.replay_policies is not None
        allowed = [*names, *self.replayed]
        sizes = {policy.name: self.group_of(policy).own for policy in self.policies}
        for policy in self.policies:
            peers = self.group_of(policy).peers
            unknown = sorted(set(peers) - set(allowed)) if isinstance(peers, dict) else []
            if unknown and known:
                raise ValueError(f"group.peers names {unknown}; expected any of {allowed}")
            self.check_group_sizes(policy, sizes)
        return self

    @model_validator(mode="after")
    def _quotas(self) -> "RunConfig":
        quota, names = self.exchange.quota, [policy.name for policy in self.policies]
        # Which policies a replayed run has is known when it is read: see mrl.replay.resolve.
        known = self.exchange.replay is None or self.exchange.replay_policies is not None
        unknown = sorted(set(quota) - {*names, *self.replayed}) if isinstance(quota, dict) else []
        if unknown and known:
            raise ValueError(
                f"exchange.quota names {unknown}; expected any of {[*names, *self.replayed]}"
            )
        return self

    @model_validator(mode="after")
    def _best(self) -> "RunConfig":
        best, every = self.checkpoint.best, self.evaluation.every
        known = ["reward", *(f"pass@{k}" for k in sorted({1, *self.evaluation.ks}))]
        if best is not None and (best not in known or every == 0):
            raise ValueError(
                f"checkpoint.best={best!r} with evaluation.every={every}; expected one of {known}, "
                "and an evaluation every so many rounds to choose by"
            )
        return self

    @model_validator(mode="after")
    def _warm_up(self) -> "RunConfig":
        """Only where the run cannot grow past its warm-up: its rounds are the schedule's end."""
        for policy in self.policies:
            rate = policy.optimizer
            bound = rate.schedule != "constant" and rate.decay_rounds is None
            if bound and rate.warmup_rounds >= self.rounds:
                raise ValueError(
                    f"policy {policy.name!r} has optimizer.warmup_rounds={rate.warmup_rounds} and "
                    f"schedule={rate.schedule!r} down to the run's end, rounds={self.rounds}; "
                    "expected fewer rounds of warm-up, more rounds, or decay_rounds above the "
                    "warm-up, with which the run may grow"
                )
        return self

    def check_group_sizes(self, policy: PolicyConfig, sizes: Mapping[str, int], /) -> None:
        """Check that a policy asks each peer for no more rollouts than it has to give.

        Parameters
        ----------
        policy : PolicyConfig
            The receiver.
        sizes : mapping of str to int
            Rollouts a prompt of the peers to be checked.

        Raises
        ------
        ValueError
            If it asks for more, or for a part of a group of which only statistics travel.
        """
        probe = self.probe_of(policy)
        if not probe.needs:
            return
        whole = "group_stats" in probe.needs
        for name, n in self.peers_of(policy.name).items():
            size = sizes.get(name, n)
            if n > size or (whole and n not in (0, size)):
                allowed = f"0 or {size}" if whole else f"at most {size}"
                raise ValueError(
                    f"group.peers asks {probe.kind} of policy {policy.name!r} for {n} rollouts of "
                    f"{name!r}, which has group.own={size}; expected {allowed}"
                )

    @property
    def folder(self) -> Path:
        """The run's folder."""
        return Path(self.output) / self.name

    def policy(self, name: str, /) -> PolicyConfig:
        """The policy of that name."""
        return next(policy for policy in self.policies if policy.name == name)

    def probe_of(self, policy: PolicyConfig, /) -> Probe:
        """The sharing rule of one policy."""
        return policy.probe or self.probe

    def objective_of(self, policy: PolicyConfig, /) -> ObjectiveConfig:
        """The objective of one policy."""
        return policy.objective or self.objective

    @property
    def replayed(self) -> tuple[str, ...]:
        """Policies of a stored run that stand in as peers, as far as they are named."""
        return self.exchange.replay_policies or ()

    def sampling_of(self, policy: PolicyConfig, /) -> SamplingConfig:
        """How one policy samples."""
        return policy.sampling or self.sampling

    def group_of(self, policy: PolicyConfig, /) -> GroupConfig:
        """Group sizes of one policy."""
        return policy.group or self.group

    def peers_of(self, receiver: str, /) -> dict[str, int]:
        """Rollouts that `receiver` sees of each other policy a prompt, replayed ones included."""
        peers = self.group_of(self.policy(receiver)).peers
        others = [policy.name for policy in self.policies if policy.name != receiver]
        return {
            name: peers.get(name, 0) if isinstance(peers, dict) else peers
            for name in (*others, *self.replayed)
        }

    def kinds_of(self, source: str, /) -> frozenset[str]:
        """Kinds of records that a policy publishes: what the others need, and what is kept."""
        needs = [self.probe_of(one).needs for one in self.policies if one.name != source]
        return frozenset(self.exchange.keep).union(*needs)


def _inherited(policy: Any, run: Mapping[str, Any], /) -> Any:
    if not isinstance(policy, Mapping):
        return policy
    own = {
        name: {**run[name], **policy[name]}
        for name in ("group", "sampling", "objective")
        if isinstance(policy.get(name), Mapping) and isinstance(run.get(name), Mapping)
    }
    return {**policy, **own}
