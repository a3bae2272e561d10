"""Mutual reinforcement learning: several policies train at once and share typed experience.

Run it with ``mrl train CONFIG``. One round:

1. the same prompts for all policies;
2. every policy samples G responses a prompt, and its verifier scores them;
3. it publishes the records that the others' sharing rules need;
4. every policy collects what its own rule needs, turns it into credit and rows of tokens;
5. it takes its gradient steps, and its engine takes over the new weights;
6. metrics, evaluation and checkpoint on schedule.

Departure from the paper: policies take their turns in one process, so all records of a round are
published before any policy collects.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mrl.bookkeeping import Bookkeeper
from mrl.config import RunConfig
from mrl.credit import assign
from mrl.exchange import Exchange
from mrl.exchange.opening import open_exchange, received
from mrl.policy import Policy, build_policies, engines
from mrl.publish import records_of, residual_of
from mrl.replay import known_codecs, resolve
from mrl.rollout.groups import draw_groups
from mrl.runs import RunFolder
from mrl.schedule import check_prompts, prompts_of
from mrl.seeds import derive, generator
from mrl.tasks import Item, Task, load_task
from mrl.timing import Phases
from mrl.update import update

Progress = Callable[[int, Sequence[dict[str, Any]]], None]


def train(
    config: RunConfig,
    /,
    *,
    resume: bool = False,
    unvalidated: bool = False,
    progress: Progress = lambda done, rows: None,
) -> Path:
    """Train all policies of a configuration; returns the run's folder.

    Parameters
    ----------
    config : RunConfig
        The whole run; results are a function of it.
    resume : bool
        Continue from the last whole checkpoint.
    unvalidated : bool
        Recorded in the run's status: the probe was not validated by the gate.
    progress : callable, optional
        Called with the rounds done and their metric rows.

    Raises
    ------
    InputError, RunError
        For input that cannot be right, and for a run that cannot go on.
    """
    config = resolve(config)
    task = load_task(config.task, config.seed)
    policies = build_policies(config)
    task = check_prompts(config, task, policies)
    opened = RunFolder.open(config, task.fingerprint, resume=resume, unvalidated=unvalidated)
    with (
        task,
        engines(policies),
        opened as run,
        open_exchange(config, task, run.path) as exchange,
    ):
        books = Bookkeeper(run, policies, task, exchange)
        for round in range(books.start, config.rounds):
            items = prompts_of(task.train, config.prompts, config.seed, round)
            phases = {policy.name: Phases() for policy in policies}
            rows = play(round, items, policies, exchange, task, config, phases)
            books.after(round, rows, phases)
            progress(round + 1, rows)
        books.end()
    return run.path


def play(
    round: int,
    items: Sequence[Item],
    policies: Sequence[Policy],
    exchange: Exchange,
    task: Task,
    config: RunConfig,
    phases: dict[str, Phases],
    /,
) -> list[dict[str, Any]]:
    """One round on `items`: rollouts -> exchange -> credit -> tokens -> loss; its metric rows."""
    groups, gaps, rows = {}, {}, []
    for policy in policies:
        clock, seed = phases[policy.name], derive(config.seed, "rollout", round, policy.name)
        size = config.group_of(config.policy(policy.name))
        own = draw_groups(policy, task, items, size, seed=seed, phases=clock)
        groups[policy.name] = own
        with clock("publish"):
            sent = records_of(policy, own, items, config.kinds_of(policy.name), task, round)
            exchange.publish(sent)
            exchange.close_round(policy.name, round)
        with clock("residual"):
            gaps[policy.name] = residual_of(policy, sent, items, config.exchange.residual_sample)
    everyone = [policy.name for policy in config.policies]
    absent = exchange.wait_round(round, everyone, config.exchange.barrier_timeout)
    for policy in policies:
        clock, peers = phases[policy.name], config.peers_of(policy.name)
        with clock("collect"):
            wanted, stale = [item.prompt_id for item in items], config.exchange.max_staleness
            needs = policy.probe.needs
            records = exchange.collect(policy.name, wanted, needs, peers, stale, round=round)
        with clock("credit"):
            assignment = assign(
                policy,
                groups[policy.name],
                records,
                items,
                peers=peers,
                task=task,
                reverify=config.exchange.reverify,
                codecs=known_codecs(policies, exchange),
                rng=generator(config.seed, "credit", round, policy.name),
            )
        with clock("update"):
            figures = update(policy, assignment) | policy.sync()
        row = {"event": "round", "round": round, "policy": policy.name} | gaps[policy.name]
        row["absent_peers"] = sorted(absent)
        rows.append(row | assignment.counts | figures | received(exchange, policy.name, round))
    exchange.drop_before(max(0, round - config.exchange.max_staleness))
    return rows
