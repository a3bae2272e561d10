"""The command ``mrl allocate``: sizes and costs, the plan, its table, summary and picture."""

from pathlib import Path

from rich.console import Console
from rich.table import Table

from mrl.allocation.costs import demands_of, inventory_of, measured
from mrl.allocation.placement import Placement, Slice
from mrl.allocation.plan import plan
from mrl.allocation.plots import timeline, where
from mrl.allocation.shortage import GIB
from mrl.config import InventoryConfig, RunConfig
from mrl.errors import InputError

COLUMNS = (
    *("policy", "mode", "generates on", "trains on", "GiB of GiB a device"),
    *("generates, s", "trains, s", "idle"),
)
MOST_ROWS = 40  # policies in the table
WIDTH = 48  # characters of a round in the summary


def allocate(
    run: RunConfig,
    cluster: InventoryConfig,
    /,
    *,
    output: Path | None,
    timing: Path | None,
    timing_kind: str | None,
    console: Console,
) -> Placement:
    """Plan a run on a cluster and say so.

    Parameters
    ----------
    run : RunConfig
    cluster : InventoryConfig
    output : Path or None
        Folder for the picture ``timeline.png``.
    timing : Path or None
        Folder of a run whose measured times correct the estimates.
    timing_kind : str or None
        The kind of device it ran on; needed where the inventory has several.
    console : Console

    Raises
    ------
    InputError
        If the policies do not fit or something that is needed is not known.
    """
    demands = demands_of(run, cluster)
    if timing is not None:
        if timing_kind is None and len(cluster.kinds) > 1:
            raise InputError(
                f"the inventory has kinds {sorted(cluster.kinds)}; say with --timing-kind on "
                "which of them the run was timed"
            )
        demands = measured(demands, timing, cluster, timing_kind or next(iter(cluster.kinds)))
    placement = plan(inventory_of(cluster), demands)
    console.print(table(placement))
    for line in summary(placement):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    if output is not None:
        try:
            output.mkdir(parents=True, exist_ok=True)
            timeline(placement).savefig(output / "timeline.png", dpi=160)
        except OSError as error:
            raise InputError(
                f"cannot write to {output}: {error.strerror}; choose another folder"
            ) from None
        console.print(f"picture written to {output / 'timeline.png'}", soft_wrap=True)
    return placement


def table(placement: Placement, /) -> Table:
    """Policies with their devices, memory and times."""
    found = Table()
    for name in COLUMNS:
        found.add_column(name, overflow="fold")  # where it is narrow, nothing is left out
    for demand in placement.demands[:MOST_ROWS]:
        first = placement.slice_of(demand.name, "generation")
        second = placement.slice_of(demand.name, "training")
        found.add_row(
            demand.name,
            placement.mode(demand.name),
            where(first),
            "the same" if first == second else where(second),
            " / ".join(_memory(placement, part) for part in dict.fromkeys([first, second])),
            f"{demand.generation.seconds(first.kind, len(first.devices)):.3g}",
            f"{demand.training.seconds(second.kind, len(second.devices)):.3g}",
            f"{max(placement.idle(first), placement.idle(second)):.0%}",
        )
    return found


def summary(placement: Placement, /) -> list[str]:
    """The round in words, and a line a slice: generation g, training t, idle dots."""
    lines = []
    if more := len(placement.demands) - MOST_ROWS:
        lines += [f"and {more} more policies"] if more > 0 else []
    lines.append(
        f"a round: {placement.round_seconds:.3g} s ({placement.generation_seconds:.3g} s until all "
        f"have published, then {placement.training_seconds:.3g} s); no placement is faster than "
        f"{placement.bound:.3g} s"
    )
    unused = f"; {placement.unused} devices are not used" if placement.unused else ""
    lines.append(f"devices work {placement.utilisation:.0%} of the time{unused}")
    for part in placement.slices[:MOST_ROWS]:
        lines.append(f"|{_bar(placement, part)}| {where(part)} ({', '.join(part.policies)})")
    return lines


def _memory(placement: Placement, part: Slice, /) -> str:
    available = placement.inventory.kind(part.kind).memory
    divided = ", sharded" if placement.sharded(part) else ""
    return f"{placement.memory(part) / GIB:.2f} of {available / GIB:.2f}{divided}"


def _bar(placement: Placement, part: Slice, /) -> str:
    """One slice's round as characters."""
    total, barrier = placement.round_seconds, placement.generation_seconds
    generates, trains = placement.phases(part)
    cells = [(i + 0.5) * total / WIDTH for i in range(WIDTH)]
    return "".join(
        "g" if t < generates else "t" if barrier <= t < barrier + trains else "." for t in cells
    )
