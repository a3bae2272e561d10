"""One policy's part in a run: the two halves of its round, and its answers to held-out items.

Between the halves all policies have published, so whoever plays several members, in one process or
many, calls `Member.publish` for all of them and then `Member.learn` for all.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mrl.config import RunConfig
from mrl.credit import assign
from mrl.evaluate import Answers, answer
from mrl.exchange import Exchange
from mrl.exchange.opening import received
from mrl.policy import Policy
from mrl.publish import records_of, residual_of
from mrl.rollout.groups import Groups, draw_groups
from mrl.seeds import derive, generator, own_streams
from mrl.tasks import Item, Task
from mrl.timing import Phases
from mrl.tokens.segments import SegmentEncoder
from mrl.update import update


@dataclass(frozen=True, eq=False)
class Turn:
    """What a policy's round showed.

    Attributes
    ----------
    row : dict
        Its metrics.
    seconds : mapping of str to float
        Wall-clock seconds of its phases.
    """

    row: dict[str, Any]
    seconds: Mapping[str, float]


@dataclass(eq=False)
class Member:
    """A policy in its run; `join` comes before its first round.

    Parameters
    ----------
    policy : Policy
        Its weights, engine and sharing rule.
    config : RunConfig
        The whole run.
    """

    policy: Policy
    config: RunConfig
    task: Task = field(init=False)
    exchange: Exchange = field(init=False)
    codecs: Mapping[str, SegmentEncoder] = field(init=False)
    _own: Groups = field(init=False)
    _gap: dict[str, Any] = field(init=False)
    _phases: Phases = field(init=False)

    def join(self, task: Task, exchange: Exchange, codecs: Mapping[str, SegmentEncoder], /) -> None:
        """Take part in a run.

        Parameters
        ----------
        task : Task
            Its verifier scores own and, where that is asked for, peers' responses.
        exchange : Exchange
            Where peers are.
        codecs : mapping of str to SegmentEncoder
            Tokens of the policies whose rollouts can arrive, by name.
        """
        self.task, self.exchange, self.codecs = task, exchange, codecs

    def too_long(self, items: Sequence[Item], /) -> dict[str, str]:
        """Ids of the prompts that exceed the policy's context, and why; see `Policy.render`."""
        return self.policy.too_long(items)

    def publish(self, round: int, items: Sequence[Item], /) -> None:
        """First half of a round: rollouts, their verdicts, and the records that others need."""
        policy, config = self.policy, self.config
        self._phases = clock = Phases()
        size, seed = config.group_of(config.policy(policy.name)), self._seed("rollout", round)
        with own_streams(self._seed("publish", round)):
            own = draw_groups(policy, self.task, items, size, seed=seed, phases=clock)
            with clock("publish"):
                kinds = config.kinds_of(policy.name)
                sent = records_of(policy, own, items, kinds, self.task, round)
                self.exchange.publish(sent)
                self.exchange.close_round(policy.name, round)
            with clock("residual"):
                self._gap = residual_of(policy, sent, items, config.exchange.residual_sample)
        self._own = own

    def learn(self, round: int, items: Sequence[Item], /) -> Turn:
        """Second half: what peers sent -> credit -> rows of tokens -> gradient steps."""
        policy, config, clock = self.policy, self.config, self._phases
        peers, needs = config.peers_of(policy.name), policy.probe.needs
        with clock("collect"):
            wanted, stale = [item.prompt_id for item in items], config.exchange.max_staleness
            records = self.exchange.collect(policy.name, wanted, needs, peers, stale, round=round)
        with clock("credit"):
            assignment = assign(
                policy,
                self._own,
                records,
                items,
                peers=peers,
                task=self.task,
                reverify=config.exchange.reverify,
                codecs=self.codecs,
                rng=generator(config.seed, "credit", round, policy.name),
            )
        with clock("update"), own_streams(self._seed("learn", round)):
            figures = update(policy, assignment) | policy.sync()
        row = {"event": "round", "round": round, "policy": policy.name} | self._gap
        row |= assignment.counts | figures | received(self.exchange, policy.name, round)
        return Turn(row, dict(clock.seconds))

    def answer(self, items: Sequence[Item], samples: int, seed: int, /) -> Answers:
        """Sample and score responses to held-out items."""
        return answer(self.policy, self.task, items, samples, seed)

    def _seed(self, purpose: str, round: int, /) -> int:
        return derive(self.config.seed, purpose, round, self.policy.name)
