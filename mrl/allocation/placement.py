"""Who runs where: slices of devices, what runs on each, and what that takes."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from mrl.allocation.problem import Demand, Device, Inventory

Mode = Literal["colocated", "split", "time-shared"]


@dataclass(frozen=True)
class Slice:
    """Devices of one kind that work together; no device is in two slices.

    Attributes
    ----------
    kind : str
    devices : tuple of Device
    generation, training : tuple of str
        Policies that generate and train here, in turns.
    """

    kind: str
    devices: tuple[Device, ...]
    generation: tuple[str, ...]
    training: tuple[str, ...]

    @property
    def policies(self) -> tuple[str, ...]:
        """Policies that have something here."""
        return tuple(dict.fromkeys(self.generation + self.training))


@dataclass(frozen=True)
class Placement:
    """A plan.

    All policies generate, then all train: a round takes as long as the slowest slice generates
    plus the slowest slice trains.

    Attributes
    ----------
    inventory : Inventory
    demands : tuple of Demand
    slices : tuple of Slice
    bound : float
        No placement has a round shorter than this, in seconds.
    """

    inventory: Inventory
    demands: tuple[Demand, ...]
    slices: tuple[Slice, ...]
    bound: float

    @cached_property
    def _demand(self) -> dict[str, Demand]:
        return {demand.name: demand for demand in self.demands}

    def phases(self, part: Slice, /) -> tuple[float, float]:
        """Seconds that a slice generates and trains in a round."""
        n = len(part.devices)
        return (
            sum(self._demand[name].generation.seconds(part.kind, n) for name in part.generation),
            sum(self._demand[name].training.seconds(part.kind, n) for name in part.training),
        )

    @cached_property
    def generation_seconds(self) -> float:
        """When the last policy has generated."""
        return max(self.phases(part)[0] for part in self.slices)

    @cached_property
    def training_seconds(self) -> float:
        """How long after that the last policy has trained."""
        return max(self.phases(part)[1] for part in self.slices)

    @property
    def round_seconds(self) -> float:
        """Time of a round."""
        return self.generation_seconds + self.training_seconds

    def memory(self, part: Slice, /, *, sharded: bool | None = None) -> float:
        """Bytes needed on each device of a slice; by default as `sharded` says."""
        state, working = demanded_memory(
            [self._demand[name] for name in part.policies],
            part.generation,
            part.training,
            len(part.devices),
        )
        if sharded is None:
            sharded = self.sharded(part)
        return state / (len(part.devices) if sharded else 1) + working

    def sharded(self, part: Slice, /) -> bool:
        """Whether states are divided among a slice's devices: where they do not fit whole."""
        whole = self.memory(part, sharded=False)
        return self.inventory.sharding and whole > self.inventory.kind(part.kind).memory

    def slice_of(self, policy: str, phase: Literal["generation", "training"], /) -> Slice:
        """The slice on which a policy has a phase."""
        return next(part for part in self.slices if policy in getattr(part, phase))

    def mode(self, policy: str, /) -> Mode:
        """How a policy uses its devices.

        Time-shared: in turns with another policy; split: one slice to generate and another to
        train; colocated: one slice for both.
        """
        parts = {self.slice_of(policy, "generation"), self.slice_of(policy, "training")}
        if any(part.policies != (policy,) for part in parts):
            return "time-shared"
        return "colocated" if len(parts) == 1 else "split"

    def idle(self, part: Slice, /) -> float:
        """Share of a round in which a slice waits for the slowest."""
        return 1 - sum(self.phases(part)) / self.round_seconds

    @property
    def unused(self) -> int:
        """Devices in no slice."""
        taken = sum(len(part.devices) for part in self.slices)
        return sum(node.devices for node in self.inventory.nodes) - taken

    @property
    def utilisation(self) -> float:
        """Share of all devices' time in which they work, those in no slice included."""
        busy = sum(sum(self.phases(part)) * len(part.devices) for part in self.slices)
        return busy / (self.round_seconds * sum(node.devices for node in self.inventory.nodes))


def demanded_memory(
    demands: Iterable[Demand],
    generation: Iterable[str],
    training: Iterable[str],
    devices: int,
    /,
) -> tuple[float, float]:
    """Memory of a slice: bytes of state in all, and of work in progress on each device.

    States of all policies stay; they run in turns, so the largest work in progress counts.
    """
    generating, learning = set(generation), set(training)
    state, working = 0.0, 0.0
    for demand in demands:
        if demand.name in generating:
            state += demand.generation.state
            working = max(working, demand.generation.working(devices))
        if demand.name in learning:
            state += demand.training.state
            working = max(working, demand.training.working(devices))
        if demand.name in generating and demand.name in learning:
            state -= demand.shared
    return state, working
