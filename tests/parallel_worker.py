"""What each of several processes does in the tests of data parallel; writes what it found."""

import json
import os
import sys
from pathlib import Path
from typing import Any


def main(settings: Path, out: Path) -> None:
    """One round's update of each policy, its gradients, and what the processes agreed on."""
    import torch

    from mrl.config import load
    from mrl.distributed import count, each, once, processes, rank

    torch.set_num_threads(1)
    with processes("cpu"):
        found: dict[str, Any] = {"rank": rank(), "count": count()}
        found["each"] = each(lambda i, job: [i, job, rank()], ["a", "b", "c"])
        found["once"] = once(lambda: rank() + 10)
        for name, failing in (("error", 0), ("one_error", 1)):
            try:
                each(_fail_in(failing), [0, 1])
            except ValueError as error:
                found[name] = str(error)
        found["gradients"], found["rows"] = gradients(load(settings))
    (out / f"{found['rank']}.json").write_text(json.dumps(found))


def _fail_in(failing: int) -> Any:
    def function(i: int, job: int) -> int:
        if i == failing:
            raise ValueError(f"job {i}")
        return job

    return function


def gradients(config: Any) -> tuple[list[list[float]], list[dict[str, Any]]]:
    """Gradients and metric rows of the first round."""
    from mrl.exchange import MemoryExchange
    from mrl.policy import build_policies
    from mrl.runtime.local import LocalTeam
    from mrl.schedule import prompts_of
    from mrl.tasks import load_task
    from mrl.train import play

    task, policies = load_task(config.task, config.seed), build_policies(config)
    items = prompts_of(task.train, config.prompts, config.seed, 0)
    with LocalTeam(config, policies) as team, MemoryExchange() as exchange:
        team.join(task, exchange)
        rows = [turn.row for turn in play(0, items, team, config)]
    flat = [
        [x for p in policy.parameters for x in p.grad.flatten().tolist()] for policy in policies
    ]
    return flat, rows


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main(Path(sys.argv[1]), Path(sys.argv[2]))
