"""What finished runs tell, read from their folders; what is half-written counts as not there."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from pathlib import Path

from lipscale.certificates import certified_accuracy, epsilon_names
from lipscale.certificates.robustness import RobustnessAt
from lipscale.errors import UserError
from lipscale.experiments.plan import Planned, Row, describe
from lipscale.metrics import ece_limit
from lipscale.report.record import Answers, RunRecord, read_record
from lipscale.runs.folder import VERSIONS, read_json


@dataclass(frozen=True, kw_only=True)
class Result(RunRecord):
    """A finished run of a plan, with the answers of its test set."""

    planned: Planned
    answers: Answers

    @property
    def constant(self) -> float:
        """L of a network that has one."""
        assert self.metrics.lipschitz_constant is not None
        return self.metrics.lipschitz_constant

    def certified(self, epsilon: float) -> float:
        """Certified robust accuracy, CRA, from the stored radii; nothing is proven without a constant."""
        (share,) = certified_accuracy(self.answers.certified, [epsilon]).values()
        return share if self.metrics.is_certified else 0.0

    @cached_property
    def limit(self) -> float:
        """The most that the ECE of a calibrated network may show, by one measure for all methods.

        LiST's T* comes from a tenth of the data and is not known better; every network gets the same allowance.
        """
        return self._limit(self.metrics.calibration_size or round(self.metrics.train_size / 10))

    @cached_property
    def strict_limit(self) -> float:
        """The limit without that allowance: sampling noise of the test set alone."""
        return self._limit(0)

    def _limit(self, calibration_size: int) -> float:
        answers = self.answers
        return ece_limit(answers.logits, answers.labels, answers.bins, calibration_size=calibration_size)

    @property
    def calibrated(self) -> bool:
        """Whether the network cannot be told from a calibrated one, by the limit that is the same for all."""
        return self.metrics.ece <= self.limit

    @property
    def robust(self) -> RobustnessAt | None:
        """What the planned attack left, if it was made on enough samples."""
        attack = self.planned.attack
        if attack is None or attack.name not in self.robustness:
            return None
        row = self.robustness[attack.name].at.get(epsilon_names([attack.epsilon])[0])
        return row if row and row.samples >= min(attack.samples, self.metrics.test_size) else None


class Results:
    """The finished runs of a plan."""

    def __init__(self, folder: Path, planned: Iterable[Planned]) -> None:
        found = {run.digest: read_result(folder, run) for run in planned}
        self._found = {digest: result for digest, result in found.items() if result is not None}

    def of(self, row: Row) -> list[Result]:
        """The finished runs of a row, one a seed."""
        return [self._found[run.digest] for run in row.runs if run.digest in self._found]

    def __len__(self) -> int:
        return len(self._found)


def read_result(folder: Path, run: Planned) -> Result | None:
    """A planned run's result, or none where it is not finished, damaged, or of another version of lipscale."""
    place = folder / run.name
    try:
        current = read_json(place / VERSIONS)["lipscale"] == version("lipscale")
        record = read_record(place, describe(run), with_samples=False)
    except (UserError, KeyError, TypeError):
        return None
    return Result(**vars(record), planned=run) if current and record.answers is not None and record.history else None
