"""Rounds of several policies on a cluster whose devices come and go, in simulated time.

Every policy generates, all wait until the last has published, every policy trains, and the next
round begins. Each phase is a gang for the `Scheduler`; what a lost node interrupts starts over.
"""

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count

import numpy as np

from mrl.allocation.placement import Placement
from mrl.allocation.scheduler import Gang, Scheduler, Start

Parts = Mapping[str, int]


@dataclass(frozen=True)
class Workload:
    """One policy in the simulator.

    Attributes
    ----------
    name : str
    generation, training : mapping of str to int
        Devices by pool.
    generation_seconds, training_seconds : float
        Means.
    """

    name: str
    generation: Parts
    training: Parts
    generation_seconds: float
    training_seconds: float


@dataclass(frozen=True)
class Faults:
    """When nodes fail and return; nothing fails after `until` seconds.

    Attributes
    ----------
    between : float
        Mean seconds between failures of one node.
    repair : float
        Mean seconds until it is back.
    storms : float
        Mean seconds between storms.
    storm_share : float
        Share of live nodes that a storm takes.
    until : float
    """

    between: float = np.inf
    repair: float = 0.0
    storms: float = np.inf
    storm_share: float = 0.0
    until: float = 0.0


@dataclass(frozen=True)
class Event:
    """What happened: submit, start, finish or lost of a gang; leave or join of a node."""

    time: float
    what: str
    name: str
    devices: Mapping[tuple[str, str], int] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """A simulated run.

    Attributes
    ----------
    seconds : float
        Until the last round was done, or nothing could happen any more.
    rounds : int
        Rounds done.
    utilisation : float
        Device-seconds of phases that were finished, over those of live devices.
    lost : float
        Device-seconds of phases that were interrupted, over those of live devices.
    longest_wait : float
        Seconds from a submission, or a loss, to the start.
    parked : tuple of str
        Gangs that wait for devices that never came back.
    log : tuple of Event
    """

    seconds: float
    rounds: int
    utilisation: float
    lost: float
    longest_wait: float
    parked: tuple[str, ...]
    log: tuple[Event, ...]


def workloads_of(placement: Placement, /) -> tuple[tuple[Workload, ...], dict[str, dict[str, int]]]:
    """A placement as workloads, and its nodes with a pool for each slice."""
    nodes: dict[str, dict[str, int]] = {node.name: {} for node in placement.inventory.nodes}
    pools = {part: f"slice-{i}" for i, part in enumerate(placement.slices)}
    for part, pool in pools.items():
        for device in part.devices:
            nodes[device.node][pool] = nodes[device.node].get(pool, 0) + 1
    workloads = []
    for demand in placement.demands:
        first = placement.slice_of(demand.name, "generation")
        second = placement.slice_of(demand.name, "training")
        workloads.append(
            Workload(
                demand.name,
                {pools[first]: len(first.devices)},
                {pools[second]: len(second.devices)},
                demand.generation.seconds(first.kind, len(first.devices)),
                demand.training.seconds(second.kind, len(second.devices)),
            )
        )
    return tuple(workloads), nodes


def simulate(
    workloads: Sequence[Workload],
    nodes: Mapping[str, Mapping[str, int]],
    rng: np.random.Generator,
    /,
    *,
    rounds: int,
    spread: float = 0.3,
    faults: Faults | None = None,
    patience: int = 4,
) -> Outcome:
    """Simulate rounds.

    Parameters
    ----------
    workloads : sequence of Workload
    nodes : mapping of str to mapping of str to int
        Devices of each node by pool.
    rng : Generator
    rounds : int
    spread : float
        Standard deviation of the logarithm of a duration.
    faults : Faults, optional
        Default: none.
    patience : int
        See `Scheduler`.

    Returns
    -------
    Outcome
    """
    return _Simulation(workloads, nodes, rng, rounds, spread, faults or Faults(), patience).run()


class _Simulation:
    """State of one simulated run."""

    def __init__(
        self,
        workloads: Sequence[Workload],
        nodes: Mapping[str, Mapping[str, int]],
        rng: np.random.Generator,
        rounds: int,
        spread: float,
        faults: Faults,
        patience: int,
        /,
    ) -> None:
        self.workloads, self.all_nodes, self.rng = workloads, nodes, rng
        self.total, self.spread, self.faults = rounds, spread, faults
        self.scheduler = Scheduler(nodes, patience)
        self.seconds = {
            f"{work.name}/{phase}": getattr(work, f"{phase}_seconds")
            for work in workloads
            for phase in ("generation", "training")
        }
        self.now, self.round, self.phase, self.left = 0.0, 0, "generation", 0
        self.order = count()
        self.agenda: list[tuple[float, int, str, str]] = []
        self.started: dict[str, tuple[float, int]] = {}  # by gang: when, and number of its finish
        self.asked: dict[str, float] = {}
        self.live = {name: sum(pools.values()) for name, pools in nodes.items()}
        self.capacity = self.busy = self.lost = self.longest = 0.0
        self.log: list[Event] = []

    def run(self) -> Outcome:
        """Play events until all rounds are done or none is left."""
        for node in self.all_nodes:
            self._plan("leave", node, self.faults.between)
        self._plan("storm", "", self.faults.storms)
        self._ask()
        while self.agenda and self.round < self.total:
            time, number, what, name = heapq.heappop(self.agenda)
            if what == "finish" and self.started.get(name, (0, -1))[1] != number:
                continue  # of a gang that was lost
            self.capacity += (time - self.now) * sum(self.live.values())
            self.now = time
            getattr(self, f"_{what}")(name)
        capacity = self.capacity or 1.0
        return Outcome(
            seconds=self.now,
            rounds=self.round,
            utilisation=self.busy / capacity,
            lost=self.lost / capacity,
            longest_wait=self.longest,
            parked=self.scheduler.parked,
            log=tuple(self.log),
        )

    def _ask(self) -> None:
        """All policies ask for their next phase."""
        self.left = len(self.workloads)
        gangs = [
            Gang(f"{work.name}/{self.phase}", getattr(work, self.phase)) for work in self.workloads
        ]
        for gang in gangs:
            self.asked[gang.name] = self.now
            self._note("submit", gang.name)
        self._begin(self.scheduler.submit(gangs))

    def _begin(self, starts: Sequence[Start], /) -> None:
        for start in starts:
            name = start.gang.name
            self.longest = max(self.longest, self.now - self.asked.pop(name))
            factor = self.rng.lognormal(-(self.spread**2) / 2, self.spread)
            number = next(self.order)
            self.started[name] = self.now, number
            end = self.now + self.seconds[name] * factor
            heapq.heappush(self.agenda, (end, number, "finish", name))
            self._note("start", name, start.devices)

    def _finish(self, name: str, /) -> None:
        devices = sum(self.scheduler.running[name].gang.parts.values())
        self.busy += (self.now - self.started.pop(name)[0]) * devices
        self._note("finish", name)
        starts = self.scheduler.finish(name)
        self.left -= 1
        self._begin(starts)
        if self.left == 0:
            self.round += self.phase == "training"
            self.phase = "training" if self.phase == "generation" else "generation"
            if self.round < self.total:
                self._ask()

    def _leave(self, node: str, /) -> None:
        if node not in self.live:
            return  # a storm took it
        self._note("leave", node)
        del self.live[node]
        gangs, starts = self.scheduler.lose(node)
        for gang in gangs:
            self.lost += (self.now - self.started.pop(gang.name)[0]) * sum(gang.parts.values())
            self.asked[gang.name] = self.now
            self._note("lost", gang.name)
        self._begin(starts)
        self._plan("join", node, self.faults.repair, always=True)

    def _storm(self, _: str, /) -> None:
        taken = self.rng.random(len(self.live)) < self.faults.storm_share
        for node, gone in zip(list(self.live), taken, strict=True):
            if gone:
                self._leave(node)
        self._plan("storm", "", self.faults.storms)

    def _join(self, node: str, /) -> None:
        self._note("join", node)
        self.live[node] = sum(self.all_nodes[node].values())
        self._begin(self.scheduler.join(node, self.all_nodes[node]))
        self._plan("leave", node, self.faults.between)

    def _plan(self, what: str, name: str, mean: float, /, *, always: bool = False) -> None:
        """Put an event on the agenda after a random time; failures only while they last."""
        if not np.isfinite(mean):
            return
        time = self.now + self.rng.exponential(mean)
        if always or time <= self.faults.until:
            heapq.heappush(self.agenda, (time, next(self.order), what, name))

    def _note(
        self, what: str, name: str, devices: Mapping[tuple[str, str], int] | None = None, /
    ) -> None:
        self.log.append(Event(self.now, what, name, devices or {}))
