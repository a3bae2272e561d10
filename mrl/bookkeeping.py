"""What a run does around its rounds: where it starts, what it writes, evaluates and keeps."""

import math
from collections.abc import Sequence

from mrl.checkpoint import best_of, restore, save
from mrl.distributed import once
from mrl.evaluate import assess
from mrl.member import Member, Turn
from mrl.runs import RunFolder
from mrl.runtime import Team
from mrl.schedule import due
from mrl.seeds import derive
from mrl.tasks import Task
from mrl.timing import Phases


class Bookkeeper:
    """Metrics, evaluation and checkpoints of one run, on schedule.

    Parameters
    ----------
    run : RunFolder
        Its open folder.
    team : Team
        Put back, with its exchange, to where the run stands.
    task : Task
        Held-out items.
    """

    def __init__(self, run: RunFolder, team: Team, task: Task, /) -> None:
        self.run, self.team, self.task = run, team, task
        self.start = restore(run, team)
        """Rounds done before."""
        notes = list(dict.fromkeys([*task.notes, *run.notes]))
        run.set_status("running", rounds_done=self.start, notes=notes)
        if self.start == 0:
            self._evaluate(0)

    def after(self, round: int, turns: Sequence[Turn], /) -> None:
        """Write what a round showed; evaluate, and keep the weights, where that is due."""
        config, done, shared = self.run.config, round + 1, Phases()
        self.run.write("metrics", [turn.row for turn in turns])
        self.run.write_timing(round, {turn.row["policy"]: turn.seconds for turn in turns})
        score, better = None, False
        if due(done, config.evaluation.every):
            with shared("evaluate"):
                score = self._evaluate(done)
            better = self._is_better(score)
        if due(done, config.checkpoint.every) or done == config.rounds or better:
            with shared("checkpoint"):
                save(self.run, done, self.team, keep=config.checkpoint.keep, score=score)
        self.run.write_timing(round, {None: shared.seconds})

    def end(self) -> None:
        """Evaluate after the last round, where that was not due."""
        config = self.run.config
        if not due(config.rounds, config.evaluation.every):
            # After the last checkpoint: a longer run that resumes from it has no such evaluation.
            self._evaluate(config.rounds)

    def _evaluate(self, done: int, /) -> float | None:
        """Write an evaluation; returns the mean over policies of the figure to choose by."""
        config, settings = self.run.config, self.run.config.evaluation
        items, seed = self.task.heldout[: settings.items], derive(config.seed, "evaluate", done)
        answers = self.team.each(Member.answer, items, settings.samples, seed)
        found = assess(answers, items, settings, round=done, seed=seed)
        self.run.write("metrics", found.rows)
        self.run.write("samples", found.samples)
        figures = [
            row[config.checkpoint.best]
            for row in found.rows
            if config.checkpoint.best and row["event"] == "evaluation" and row["tag"] is None
        ]
        known = [figure for figure in figures if figure is not None]
        return math.fsum(known) / len(known) if known else None

    def _is_better(self, score: float | None, /) -> bool:
        best = once(lambda: best_of(self.run.checkpoints))
        return score is not None and (best is None or score > best[1])
