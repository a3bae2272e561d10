"""A run's policies, loaded from one of its checkpoints."""

from pathlib import Path

from mrl import config as configuration
from mrl.checkpoint import PREFIX, best_of, latest, read_policy, whole
from mrl.config import EvaluationConfig, RunConfig
from mrl.errors import InputError
from mrl.evaluate import Evaluation, evaluate
from mrl.policy import Policy, build_policies, engines
from mrl.schedule import check_prompts
from mrl.seeds import derive
from mrl.tasks import load_task


def load_policies(
    folder: Path, round: int | None = None, /, *, best: bool = False
) -> tuple[RunConfig, list[Policy], int]:
    """Configuration, policies and rounds done of a checkpoint in a run's folder.

    Parameters
    ----------
    folder : Path
        The run's folder.
    round : int, optional
        Rounds done by the checkpoint; 0: the weights that the run started from. Default: the
        newest.
    best : bool
        The checkpoint that evaluations found best (`checkpoint.best`) in place of the newest.

    Raises
    ------
    InputError
        If the folder holds no run, or the run has no such checkpoint.
    """
    config = configuration.load(folder / "config.yaml")
    policies = build_policies(config)
    if round == 0:
        return config, policies, 0
    checkpoints = folder / "checkpoints"
    path = latest(checkpoints) if round is None else checkpoints / f"{PREFIX}{round:06d}"
    if best:
        found = best_of(checkpoints)
        if found is None:
            raise InputError(
                f"{folder} has no checkpoint with an evaluation of its own; set checkpoint.best "
                "and evaluation.every, or take the newest"
            )
        path = found[0]
    if path is None:
        raise InputError(
            f"{folder} has no checkpoint yet; train it first, or lower checkpoint.every"
        )
    if not path.is_dir():
        kept = [
            int(one.name.removeprefix(PREFIX)) for one in sorted(checkpoints.glob(f"{PREFIX}*"))
        ]
        raise InputError(
            f"{folder} has no checkpoint of round {round}; it keeps {kept}, and 0 stands for the "
            "weights that it started from (checkpoint.every and checkpoint.keep keep more)"
        )
    rounds_done: int = whole(path, [policy.name for policy in policies])["rounds_done"]
    for policy in policies:
        read_policy(path / policy.name, policy)
    return config, policies, rounds_done


def evaluate_run(folder: Path, /, *, samples: int, items: int, best: bool = False) -> Evaluation:
    """Evaluate a checkpoint of a run, see `load_policies`, on the first held-out items."""
    config, policies, rounds_done = load_policies(folder, best=best)
    settings = EvaluationConfig(samples=samples, items=items, ks=tuple(sorted({1, samples})))
    with load_task(config.task, config.seed) as loaded, engines(policies):
        task = check_prompts(
            config, loaded, lambda chosen: [policy.too_long(chosen) for policy in policies]
        )
        return evaluate(
            policies,
            task,
            settings,
            round=rounds_done,
            seed=derive(config.seed, "evaluate", rounds_done),
        )
