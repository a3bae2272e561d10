"""Rung "parity": the trainer's gradient of a one-token language model is the bandit's, exactly.

One round of the trainer's own loop is played on a language model whose logits are a table, with
the run's sharing rules, group sizes, objective and exchange. The gradient it leaves on the table
is compared with the one that the bandit's executor forms from the same rollouts.

A response is one token here, so all aggregations coincide, and on the first update of a round the
clipped ratio is 1: about these the rung tells only that they change nothing. Responses do not end
by EOS, so `mask_truncated` is off. Off are also terms that theory does not have, divergence from a
reference and correction for the engine; clipping of the gradient norm, which would rescale it; and
top-p, which would truncate the distribution that the bandit knows.
Source: docs/gate.md.
"""

from types import SimpleNamespace

import numpy as np
import torch

from bandit import World
from bandit.execution import execute
from bandit.policies import log_probabilities, log_ratio
from bandit.probes import Credit, Group
from bandit.probes.group import Array
from bandit.rollouts import Arms
from mrl.config import OptimizerConfig, PolicyConfig, RunConfig
from mrl.exchange import MemoryExchange
from mrl.gate.certificate import Check, Rung
from mrl.policy import Policy
from mrl.rollout.groups import draw_groups
from mrl.runtime.local import LocalTeam
from mrl.seeds import derive, generator
from mrl.tasks import Item, Task
from mrl.timing import Phases
from mrl.tokens.recipes import character_tokenizer
from mrl.train import play

BOUND = 1e-10
# A gradient of 0 agrees with anything.
LEAST_GRADIENT = 1e-6
# Enough prompts that dead, rescued and ordinary groups all come up.
PROMPTS = 64
NEVER = -1e9
SPECIAL_TOKENS = 2
# What theory does not have, and what a response of one token without end cannot have.
NEUTRAL = {"updates": 1, "mask_truncated": False, "kl": 0.0, "engine_correction": None}
# CJK ideographs: one block with room for any number of contexts and arms. Each has 3 bytes, so
# that a ratio divided by bytes is told apart from one that is not.
FIRST_CHARACTER = 0x4E00


class TableModel(torch.nn.Module):
    """A language model whose next-token logits are the row of the current token.

    Parameters
    ----------
    logits : ndarray, shape (V, V)
        float64. Row: the current token; column: the next one.
    """

    def __init__(self, logits: Array) -> None:
        super().__init__()
        self.table = torch.nn.Parameter(torch.from_numpy(logits))
        self.config = SimpleNamespace(max_position_embeddings=None)

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        use_cache: bool = False,
        logits_to_keep: int = 0,
    ) -> SimpleNamespace:
        """Logits (N, T, V) of the last `logits_to_keep` tokens, of all where that is 0."""
        return SimpleNamespace(logits=self.table[input_ids[:, -logits_to_keep:]])


class Toy:
    """A gate world as a task for language models: a prompt is a context, a response an arm.

    Parameters
    ----------
    run : RunConfig
        The run whose settings are looked at.
    world : World
        The gate's world.
    """

    def __init__(self, run: RunConfig, world: World) -> None:
        self.run, self.world = run, world
        characters = [chr(FIRST_CHARACTER + i) for i in range(world.n_contexts + world.n_arms)]
        self.alphabet = "".join(characters)
        self.arm_of = {c.encode(): k for k, c in enumerate(characters[world.n_contexts :])}
        copies = -(-PROMPTS // world.n_contexts)
        self.contexts = np.tile(np.arange(world.n_contexts), copies)
        # The answer field only tells the copies of a prompt apart.
        self.items = [Item.of(characters[x], str(i)) for i, x in enumerate(self.contexts)]
        context_of = dict(zip((item.prompt_id for item in self.items), self.contexts, strict=True))

        def verify(item: Item, response: bytes, finished: bool) -> float:
            return float(world.rewards[context_of[item.prompt_id], self.arm_of[response]])

        self.task = Task(tuple(self.items), (), "gate-world", verify)

    @property
    def rows(self) -> slice:
        """Token ids of the contexts."""
        return slice(SPECIAL_TOKENS, SPECIAL_TOKENS + self.world.n_contexts)

    @property
    def columns(self) -> slice:
        """Token ids of the arms."""
        return slice(self.rows.stop, self.rows.stop + self.world.n_arms)

    def policy(self, config: PolicyConfig, /) -> Policy:
        """The policy that plays as its row of the world, with the run's sharing rule."""
        sampling = self.run.sampling_of(config)
        logits = np.full((self.columns.stop, self.columns.stop), NEVER)
        index = self.run.policies.index(config)
        table = sampling.temperature * log_probabilities(self.world.probs[index])
        logits[self.rows, self.columns] = np.maximum(table, NEVER)
        objective = self.run.objective_of(config)
        policy = Policy(
            name=config.name,
            model=TableModel(logits),
            tokenizer=character_tokenizer(self.alphabet),
            probe=self.run.probe_of(config),
            sampling=sampling.model_copy(update={"max_tokens": 1, "top_p": 1.0}),
            objective=objective.model_copy(update=NEUTRAL),
            optimizer=OptimizerConfig(kind="sgd", max_grad_norm=None),
            template="plain",
        )
        policy.eos_id = None
        return policy

    def arms(self, policy: Policy, /) -> Arms:
        """Arms (B, G) that a policy draws in round 0, by the trainer's own random stream."""
        drawn = draw_groups(
            policy,
            self.task,
            self.items,
            self.run.group_of(self.run.policy(policy.name)),
            seed=derive(self.run.seed, "rollout", 0, policy.name),
            phases=Phases(),
        )
        return np.array([[self.arm_of[one.text] for one in group] for group in drawn.rollouts])


def parity_rung(run: RunConfig, world: World, /) -> Rung:
    """Play one round and compare every policy's gradient with the bandit's.

    Parameters
    ----------
    run : RunConfig
        The run whose settings are looked at; one torch round with its exchange rules.
    world : World
        The gate's world.

    Returns
    -------
    Rung
        For each policy the largest difference, absolute and relative to the largest entry, and
        that entry, which must not be 0.
    """
    toy = Toy(run, world)
    policies = [toy.policy(config) for config in run.policies]
    arms = {policy.name: toy.arms(policy) for policy in policies}
    expected = {policy.name: bandit_gradient(toy, policy, arms) for policy in policies}
    with LocalTeam(run, policies) as team, MemoryExchange() as exchange:
        team.join(toy.task, exchange)
        turns = play(0, toy.items, team, run)
    checks, figures = [], {}
    for policy, turn in zip(policies, turns, strict=True):
        # The trainer descends a loss; the bandit's gradient points uphill.
        found = -policy.parameters[0].grad.numpy()
        largest = float(np.abs(expected[policy.name]).max())
        difference = float(np.abs(found - expected[policy.name]).max())
        relative = difference / largest if largest > 0 else float("nan")
        name = policy.name
        checks += [
            Check.at_least(f"{name}: largest gradient entry", largest, LEAST_GRADIENT),
            Check.at_most(f"{name}: |trainer - bandit|", difference, BOUND),
            Check.at_most(f"{name}: the same, relative", relative, BOUND),
        ]
        figures[name] = {
            "largest_entry": largest,
            "difference": difference,
            "relative_difference": relative,
            "prompts": len(toy.items),
            "dead_share": turn.row["dead_share"],
            "rescued_prompts": turn.row["rescued_prompts"],
            "peer_tokens_trained": turn.row["trained_tokens_peer"],
        }
    note = "a response is one token here: this rung tells nothing about aggregation over tokens"
    return Rung(tuple(checks), figures, (note,))


def bandit_gradient(toy: Toy, policy: Policy, arms: dict[str, Arms], /) -> Array:
    """The gradient (V, V) that theory expects on a policy's table, averaged over prompts.

    Parameters
    ----------
    toy : Toy
        World, prompts and run.
    policy : Policy
        The receiver; only its name and its sharing rule are used.
    arms : {name: ndarray of int, shape (B, G)}
        What each policy drew.
    """
    world, run = toy.world, toy.run
    index = {config.name: i for i, config in enumerate(run.policies)}
    seen = {name: n for name, n in sorted(run.peers_of(policy.name).items()) if n}
    own = arms[policy.name]
    peers = np.concatenate(
        [np.zeros((len(own), 0), np.intp), *(arms[name][:, :n] for name, n in seen.items())],
        axis=-1,
    )
    at = toy.contexts[:, None]
    group = Group(
        own_rewards=world.rewards[at, own],
        peer_rewards=world.rewards[at, peers],
        peer_source=np.repeat([index[name] for name in seen], list(seen.values())).astype(np.int64),
        success_threshold=world.success_threshold,
    )
    credit = policy.probe.credit(group, generator(run.seed, "credit", 0, policy.name))
    sources = [index[policy.name], *(index[name] for name in seen)]
    weights = _ratio_weights(world, credit, sources, group, at, peers)
    probs = world.probs[index[policy.name]][toy.contexts]
    by_prompt = execute(probs, own, peers, credit, weights)
    gradient = np.zeros((toy.columns.stop, toy.columns.stop))
    # The policy's logits are the table divided by the temperature.
    share = by_prompt / (len(toy.items) * policy.sampling.temperature)
    np.add.at(gradient[:, toy.columns], toy.contexts + toy.rows.start, share)
    return gradient


def _ratio_weights(
    world: World, credit: Credit, sources: list[int], group: Group, at: Arms, peers: Arms, /
) -> Array | None:
    """Weight (B, M) of each peer rollout, from exact log-probabilities."""
    rule = credit.peer_ratio
    if rule is None:
        return None
    receiver, *others = sources
    log_weights = np.zeros(peers.shape)
    for j in others:
        columns = group.peer_source == j
        table = log_ratio(world.probs[receiver], world.probs[j])
        log_weights[:, columns] = table[at, peers[:, columns]]
    if rule.kind == "length_normalised":
        log_weights /= len(chr(FIRST_CHARACTER).encode())
    return rule.weights(log_weights)
