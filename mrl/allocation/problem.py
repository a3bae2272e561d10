"""What a plan is made from: the devices that there are, and what each policy's round takes."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple


class Device(NamedTuple):
    """One device: its node and its number there."""

    node: str
    number: int


@dataclass(frozen=True)
class Kind:
    """Devices of one kind are alike.

    Attributes
    ----------
    name : str
    memory : float
        Usable bytes of one device.
    """

    name: str
    memory: float


@dataclass(frozen=True)
class Node:
    """A machine with devices of one kind."""

    name: str
    kind: str
    devices: int


@dataclass(frozen=True)
class Inventory:
    """All devices of a cluster.

    Attributes
    ----------
    kinds : tuple of Kind
    nodes : tuple of Node
    sharding : bool
        Whether weights, gradients and optimizer state may be divided among the devices of a slice.
    """

    kinds: tuple[Kind, ...]
    nodes: tuple[Node, ...]
    sharding: bool = True

    def __post_init__(self) -> None:
        """Check that every node has devices of a known kind, and every kind a node.

        Raises
        ------
        ValueError
            Naming what is wrong.
        """
        names = [node.name for node in self.nodes]
        if len(set(names)) != len(names):
            raise ValueError(f"nodes must have different names; got {sorted(names)[:10]}")
        if empty := [node.name for node in self.nodes if node.devices < 1]:
            raise ValueError(f"nodes {empty[:10]} have no devices; expected at least one each")
        known, used = {kind.name for kind in self.kinds}, {node.kind for node in self.nodes}
        if not used or known != used:
            raise ValueError(
                f"nodes have kinds {sorted(used)} and the inventory {sorted(known)}; expected the "
                "same, and at least one"
            )

    def count(self, kind: str, /) -> int:
        """Devices of one kind."""
        return sum(node.devices for node in self.nodes if node.kind == kind)

    def kind(self, name: str, /) -> Kind:
        """The kind of that name."""
        return next(kind for kind in self.kinds if kind.name == name)


class Cost(NamedTuple):
    """Seconds on one device of a kind.

    Attributes
    ----------
    once : float
        Each round, however few rows the device has.
    batch : float
        Each batch of rows.
    row : float
        Each row.
    """

    once: float
    batch: float
    row: float


@dataclass(frozen=True)
class Phase:
    """Generation or training of one policy in one round.

    Rows are divided evenly: of n devices the fullest has ceil(rows / n).

    Attributes
    ----------
    rows : int
        Rollouts generated, or trained on.
    batch : int
        Most rows that a device takes at once.
    costs : mapping of str to Cost
        By name of a kind; the phase cannot run on a kind that is left out.
    state : float
        Bytes that stay on the slice between turns: weights, gradients, optimizer state.
    row_bytes : float
        Bytes a row needs while it runs: cache of keys and values, or activations.
    """

    rows: int
    batch: int
    costs: Mapping[str, Cost]
    state: float
    row_bytes: float

    def __post_init__(self) -> None:
        """Check that there is something to do.

        Raises
        ------
        ValueError
            If there are no rows, a batch holds none, or they take no time.
        """
        if self.rows < 1 or self.batch < 1:
            raise ValueError(f"rows={self.rows}, batch={self.batch}; expected at least 1 each")
        for kind, cost in self.costs.items():
            if min(cost) < 0 or not 0 < sum(cost) < math.inf:
                raise ValueError(
                    f"{cost} on kind {kind!r}; expected finite seconds, none negative, some "
                    "positive"
                )

    def seconds(self, kind: str, devices: int, /) -> float:
        """Time of the phase on `devices` devices of a kind; infinite where it cannot run."""
        if kind not in self.costs:
            return math.inf
        cost, rows = self.costs[kind], -(-self.rows // devices)
        return cost.once + cost.batch * -(-rows // self.batch) + cost.row * rows

    def working(self, devices: int, /) -> float:
        """Bytes that each of `devices` devices needs while the phase runs."""
        return self.row_bytes * min(self.batch, -(-self.rows // devices))


@dataclass(frozen=True)
class Demand:
    """What one policy asks for.

    Attributes
    ----------
    name : str
    generation, training : Phase
    shared : float
        Bytes of state that both phases hold once where they are on the same devices: the weights,
        unless the generation engine keeps a copy of its own.
    """

    name: str
    generation: Phase
    training: Phase
    shared: float = 0.0
