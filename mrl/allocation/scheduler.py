"""Who may run now: gangs start whole, in turn, and none waits forever.

`Scheduler` is a state machine without clock, thread or randomness: it takes events and answers
with gangs that start, so the runtime and the simulator run the same code.

- **All or nothing.** A gang gets all its parts in one step or none, so no two gangs can each hold
  what the other needs.
- **In turn, with few exceptions.** Gangs start in the order of their first submission. One that
  does not fit now lets younger ones pass, at most `patience` of them; after that nothing younger
  starts before it. One that would not fit if all live devices were free is parked: it delays
  nobody and takes its old place in the order when devices return.
- **Bounded waiting.** Each time a gang waits, at most `patience` younger ones start before it
  while it could fit. So if no gang runs longer than D and no device is lost, a gang submitted
  behind w waiting ones starts within (w + 1)(patience + 1) D: the oldest starts at the latest D
  after the last that passed it, and those that passed it started at most D apart.

Devices are counted in pools. A pool is a kind of device where any will do, or a slice of a
placement where a policy's weights are on particular devices.
"""

import heapq
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Gang:
    """Parts that run together.

    Attributes
    ----------
    name : str
        Unique among gangs that wait or run.
    parts : mapping of str to int
        Devices by pool.
    """

    name: str
    parts: Mapping[str, int]


@dataclass(frozen=True)
class Start:
    """A gang starts, on devices by (node, pool)."""

    gang: Gang
    devices: Mapping[tuple[str, str], int]


@dataclass
class _Waiting:
    gang: Gang
    turn: int
    passed: int = 0  # younger gangs that started while this one could have fitted


@dataclass
class Scheduler:
    """Gangs that wait and run, and devices that are free.

    Parameters
    ----------
    nodes : mapping of str to mapping of str to int
        Devices of each live node by pool.
    patience : int
        Younger gangs that may pass a waiting one.
    """

    nodes: Mapping[str, Mapping[str, int]]
    patience: int = 4
    running: dict[str, Start] = field(default_factory=dict)
    _waiting: list[_Waiting] = field(default_factory=list)
    _turns: dict[str, int] = field(default_factory=dict)
    _next: int = 0
    _free: dict[str, dict[str, int]] = field(default_factory=dict)
    _live: dict[str, int] = field(default_factory=dict)
    _idle: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.patience < 0:
            raise ValueError(f"patience={self.patience}; expected a number >= 0")
        given, self.nodes = self.nodes, {}
        for name, pools in given.items():
            self._join(name, pools)

    @property
    def waiting(self) -> tuple[str, ...]:
        """Names of gangs that wait, in turn."""
        return tuple(one.gang.name for one in self._waiting)

    @property
    def parked(self) -> tuple[str, ...]:
        """Names of waiting gangs that the live devices could not hold even if all were free."""
        return tuple(one.gang.name for one in self._waiting if not self._could(one.gang))

    @property
    def free(self) -> Mapping[str, int]:
        """Free devices by pool."""
        return dict(self._idle)

    def submit(self, gangs: Iterable[Gang], /) -> list[Start]:
        """Gangs ask to run.

        Raises
        ------
        ValueError
            If one of that name waits or runs, or a part is not positive; then none is taken.
        """
        gangs = list(gangs)
        names = [gang.name for gang in gangs]
        known = {*self.running, *self.waiting}
        for i, gang in enumerate(gangs):
            if gang.name in known or gang.name in names[:i]:
                raise ValueError(f"gang {gang.name!r} waits or runs already; names must differ")
            if not gang.parts or min(gang.parts.values()) < 1:
                raise ValueError(
                    f"gang {gang.name!r} asks for {dict(gang.parts)}; expected parts of at least "
                    "one device"
                )
        for gang in gangs:
            self._waiting.append(_Waiting(gang, self._next))
            self._turns[gang.name] = self._next
            self._next += 1
        return self._start()

    def finish(self, name: str, /) -> list[Start]:
        """A running gang is done and frees its devices.

        Raises
        ------
        ValueError
            If no gang of that name runs.
        """
        if name not in self.running:
            raise ValueError(f"gang {name!r} does not run; running are {sorted(self.running)}")
        self._release(self.running.pop(name))
        del self._turns[name]
        return self._start()

    def lose(self, node: str, /) -> tuple[list[Gang], list[Start]]:
        """A node is gone: gangs with a part on it lose all their parts and wait again, in turn.

        Returns
        -------
        lost : list of Gang
            Stop what is left of them before the starts, which may use its devices.
        starts : list of Start

        Raises
        ------
        ValueError
            If there is no such node.
        """
        if node not in self.nodes:
            raise ValueError(f"node {node!r} is not live; live are {sorted(self.nodes)[:10]}")
        lost = [
            start
            for start in self.running.values()
            if any(where == node for where, _ in start.devices)
        ]
        for start in lost:
            del self.running[start.gang.name]
            self._release(start)
            self._waiting.append(_Waiting(start.gang, self._turns[start.gang.name]))
        self._waiting.sort(key=lambda one: one.turn)
        for pool, count in self.nodes[node].items():
            self._live[pool] -= count
            self._idle[pool] -= self._free[pool].pop(node)
        self.nodes = {name: pools for name, pools in self.nodes.items() if name != node}
        return [start.gang for start in lost], self._start()

    def join(self, node: str, pools: Mapping[str, int], /) -> list[Start]:
        """A node comes, or comes back.

        Raises
        ------
        ValueError
            If a node of that name is live.
        """
        if node in self.nodes:
            raise ValueError(f"node {node!r} is live already")
        self._join(node, pools)
        return self._start()

    def _join(self, node: str, pools: Mapping[str, int], /) -> None:
        self.nodes = {**self.nodes, node: dict(pools)}
        for pool, count in pools.items():
            self._free.setdefault(pool, {})[node] = count
            self._live[pool] = self._live.get(pool, 0) + count
            self._idle[pool] = self._idle.get(pool, 0) + count

    def _could(self, gang: Gang, /) -> bool:
        """Whether a gang would fit if all live devices were free."""
        return all(self._live.get(pool, 0) >= count for pool, count in gang.parts.items())

    def _fits(self, gang: Gang, /) -> bool:
        """Whether a gang fits now."""
        return all(self._idle.get(pool, 0) >= count for pool, count in gang.parts.items())

    def _start(self) -> list[Start]:
        """Start what may start, the oldest first."""
        starts: list[Start] = []
        held: list[_Waiting] = []  # older than the one looked at; could fit, but not now
        left: list[_Waiting] = []
        for i, one in enumerate(self._waiting):
            if not self._could(one.gang):
                left.append(one)
            elif self._fits(one.gang):
                starts.append(self._give(one.gang))
                for older in held:
                    older.passed += 1
            else:
                left.append(one)
                held.append(one)
            if any(older.passed >= self.patience for older in held):
                left += self._waiting[i + 1 :]
                break
        self._waiting = left
        return starts

    def _give(self, gang: Gang, /) -> Start:
        """Take devices for a gang: in one node where it has room, else from the emptiest."""
        devices: dict[tuple[str, str], int] = {}
        for pool, count in gang.parts.items():
            free = self._free[pool]
            whole = [node for node, idle in free.items() if idle >= count]
            if whole:
                chosen = [min(whole, key=lambda node: (free[node], node))]  # noqa: B023
            else:
                chosen = heapq.nlargest(count, free, key=lambda node: free[node])  # noqa: B023
            missing = count
            for node in chosen:
                part = min(free[node], missing)
                if part:
                    devices[node, pool] = part
                    free[node] -= part
                    missing -= part
            self._idle[pool] -= count
        start = Start(gang, devices)
        self.running[gang.name] = start
        return start

    def _release(self, start: Start, /) -> None:
        for (node, pool), count in start.devices.items():
            self._free[pool][node] += count
            self._idle[pool] += count
