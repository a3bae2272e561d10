"""What is short where policies do not fit: which policy, how much it needs, what there is."""

from collections.abc import Sequence

import numpy as np

from mrl.allocation.placement import demanded_memory
from mrl.allocation.problem import Demand, Inventory
from mrl.allocation.tables import NEVER, Tables
from mrl.errors import InputError

GIB = 2**30
WAYS_OUT = (
    "use devices with more memory or more of them, a smaller model or dtype, "
    "a smaller objective.batch_tokens or sampling.batch"
)


def check_each(inventory: Inventory, demands: Sequence[Demand], tables: Tables, /) -> None:
    """Check that each policy fits if it has all devices to itself.

    Raises
    ------
    InputError
        Naming the first policy and phase that fits on no kind of device.
    """
    everyone = np.eye(len(demands), dtype=bool)
    no_one = np.zeros_like(everyone)
    for phase, held, times in (
        ("generation", tables.least_for_memory(everyone, no_one), tables.generation),
        ("training", tables.least_for_memory(no_one, everyone), tables.training),
    ):
        runs = np.isfinite(times[..., 0])
        for demand, fits, runs_on in zip(demands, (held < NEVER) & runs, runs, strict=True):
            if not fits.any():
                kinds = [k.name for k, on in zip(inventory.kinds, runs_on, strict=True) if on]
                raise InputError(_one(inventory, demand, phase, kinds))


def _one(inventory: Inventory, demand: Demand, phase: str, kinds: Sequence[str], /) -> str:
    if not kinds:
        return (
            f"{phase} of policy {demand.name!r} has costs on none of the kinds "
            f"{[kind.name for kind in inventory.kinds]}; expected at least one"
        )
    needs = {}
    for name in kinds:
        most = inventory.count(name)
        on = [demand.name] if phase == "generation" else [], [demand.name] * (phase == "training")
        state, working = demanded_memory([demand], *on, most)
        needs[name] = state / (most if inventory.sharding else 1) + working, state, working
    closest = min(kinds, key=lambda name: needs[name][0] / inventory.kind(name).memory)
    need, state, working = needs[closest]
    how = (
        f"divided among all {inventory.count(closest)} devices of kind {closest!r}"
        if inventory.sharding
        else "which each device holds whole (sharding: false)"
    )
    return (
        f"policy {demand.name!r} does not fit: {phase} needs {need / GIB:.2f} GiB on each device "
        f"({state / GIB:.2f} GiB of weights and optimizer state {how}, and {working / GIB:.2f} GiB "
        f"of work in progress); the largest available is "
        f"{inventory.kind(closest).memory / GIB:.2f} GiB; {WAYS_OUT}"
    )


def explain_all(inventory: Inventory, demands: Sequence[Demand], /, *, proven: bool) -> InputError:
    """The error where every policy fits alone and all together do not."""
    total = sum(demanded_memory([demand], [demand.name], [demand.name], 1)[0] for demand in demands)
    available = sum(inventory.count(kind.name) * kind.memory for kind in inventory.kinds)
    largest = max(demands, key=lambda demand: demand.training.state)
    found = "no placement holds" if proven else "no placement was found that holds"
    return InputError(
        f"each policy fits alone, but {found} all {len(demands)} at once: their weights and "
        f"optimizer state need {total / GIB:.2f} GiB in all beside work in progress, and the "
        f"devices have {available / GIB:.2f} GiB; the largest is {largest.name!r} with "
        f"{largest.training.state / GIB:.2f} GiB; {WAYS_OUT}, or fewer policies"
    )
