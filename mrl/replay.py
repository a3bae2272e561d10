"""Replay: a finished run's policies stand in as peers of this one, by what they published then.

Nothing of them is in memory but their tokenizers. Source: docs/runs.md, "Replay".
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from mrl.config import ExchangeConfig, RunConfig, load, parse
from mrl.errors import InputError
from mrl.exchange import Exchange
from mrl.exchange.replay import ReplayExchange, first_round_kept
from mrl.exchange.request import ExchangeError
from mrl.runs import read_status
from mrl.tasks import Item, Task, load_task


@dataclass(frozen=True)
class StoredRun:
    """A finished run that kept its exchange.

    Attributes
    ----------
    folder : Path
        Its folder.
    config : RunConfig
        Its configuration.
    rounds : range
        Rounds whose records its file holds.
    """

    folder: Path
    config: RunConfig
    rounds: range

    @classmethod
    def of(cls, folder: Path, /) -> Self:
        """Read what a run's folder says of it.

        Raises
        ------
        InputError
            If there is no finished run, or it kept no exchange.
        """
        if not (folder / "config.yaml").is_file():
            raise InputError(
                f"exchange.replay={str(folder)!r} is no folder of a run; expected one with "
                "config.yaml"
            )
        config, file = load(folder / "config.yaml"), folder / "exchange.sqlite"
        if not file.is_file():
            raise InputError(
                f"exchange.replay: {folder} kept no records (its exchange.store is "
                f"{config.exchange.store!r}); train it with exchange.store=sqlite and exchange.keep"
            )
        status = read_status(folder)
        if status.get("status") == "running":
            raise InputError(
                f"exchange.replay: {folder} is still running or was killed; wait for its end, or "
                "finish it with --resume"
            )
        try:
            first = first_round_kept(file)
        except ExchangeError as error:
            raise InputError(f"exchange.replay: {error}") from None
        return cls(folder, config, range(first, status.get("rounds_done", 0)))

    def group_size(self, name: str, /) -> int:
        """Rollouts a prompt of one of its policies."""
        return self.config.group_of(self.config.policy(name)).own

    def prompts(self, version: int, items: Sequence[Item], /) -> set[str]:
        """Ids of the prompts of one of its rounds; none where its records are not kept."""
        from mrl.schedule import prompts_of

        if version not in self.rounds:
            return set()
        chosen = prompts_of(items, self.config.prompts, self.config.seed, version)
        return {item.prompt_id for item in chosen}


def resolve(config: RunConfig, /) -> RunConfig:
    """Name the replayed policies in a configuration, and check that they can stand in.

    Returns
    -------
    RunConfig
        With ``exchange.replay_policies`` set; the same object where nothing is replayed.

    Raises
    ------
    InputError
        If the stored run cannot be read, has no such policies or other names are taken, stored too
        few rollouts, or lacks a kind of records that this run's sharing rules need.
    """
    if config.exchange.replay is None:
        return config
    stored = StoredRun.of(Path(config.exchange.replay))
    known = [policy.name for policy in stored.config.policies]
    chosen = config.exchange.replay_policies
    chosen = tuple(known) if chosen is None else chosen
    if unknown := sorted(set(chosen) - set(known)):
        raise InputError(
            f"exchange.replay_policies names {unknown}; {stored.folder} has the policies {known}"
        )
    values = config.model_dump()
    values["exchange"]["replay_policies"] = chosen
    resolved = parse(values)
    _check_kinds(resolved, stored)
    return resolved


def _check_kinds(config: RunConfig, stored: StoredRun, /) -> None:
    """Every rule's records must be there, and as many of them as it asks for."""
    for policy in config.policies:
        probe = config.probe_of(policy)
        peers = config.peers_of(policy.name)
        seen = [name for name in config.replayed if peers[name]]
        for name in seen:
            if missing := sorted(probe.needs - stored.config.kinds_of(name)):
                raise InputError(
                    f"policy {policy.name!r} shares by {probe.kind}, which needs {missing} of "
                    f"{name!r}, and {stored.folder} stored {sorted(stored.config.kinds_of(name))}; "
                    f"train that run with exchange.keep={missing}"
                )
        try:
            config.check_group_sizes(policy, {name: stored.group_size(name) for name in seen})
        except ValueError as error:
            raise InputError(str(error)) from None


def check_coverage(config: RunConfig, task: Task, /) -> None:
    """Refuse a replay in which some prompt of this run has no stored group within the staleness.

    Raises
    ------
    InputError
        With the share of prompts that are covered.
    """
    if config.exchange.replay is None:
        return
    from mrl.schedule import prompts_of

    stored = StoredRun.of(Path(config.exchange.replay))
    same = (stored.config.task, stored.config.seed) == (config.task, config.seed)
    theirs = (task if same else load_task(stored.config.task, stored.config.seed)).train
    stale, covered, total = config.exchange.max_staleness, 0, 0
    groups = {v: stored.prompts(v, theirs) for v in stored.rounds if v < config.rounds}
    for round in range(config.rounds):
        asked = {
            item.prompt_id for item in prompts_of(task.train, config.prompts, config.seed, round)
        }
        window = (groups.get(v, set()) for v in range(max(0, round - stale), round + 1))
        covered += len(asked & set().union(*window))
        total += len(asked)
    if covered < total:
        kept = f"{stored.rounds.start} to {stored.rounds.stop - 1}" if stored.rounds else "none"
        raise InputError(
            f"exchange.replay: {stored.folder} has records for {covered / total:.0%} of the "
            f"prompts that this run's {config.rounds} rounds train on, looking back "
            f"exchange.max_staleness={stale} rounds; expected all of them. Give this run the same "
            f"task, seed and prompts a round and no more rounds than were stored (rounds {kept}), "
            "or let it look further back; a run keeps all its rounds with exchange.keep"
        )


def known_codecs(policies: Sequence[Any], exchange: Exchange, /) -> dict[str, Any]:
    """Tokens of every policy whose rollouts can arrive, by name: those here and replayed ones."""
    replayed: Mapping[str, Any] = exchange.codecs if isinstance(exchange, ReplayExchange) else {}
    return {policy.name: policy.codec for policy in policies} | dict(replayed)


def stored_codecs(config: ExchangeConfig, /) -> dict[str, Any]:
    """Tokens of the replayed policies by name, from the stored run's configuration."""
    from mrl.models import load_codec

    if config.replay is None:
        return {}
    stored, chosen = StoredRun.of(Path(config.replay)), config.replay_policies or ()
    return {one.name: load_codec(one) for one in stored.config.policies if one.name in chosen}
