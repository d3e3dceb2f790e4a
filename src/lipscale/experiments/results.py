"""What finished runs tell, read from their folders; what is half-written counts as not there."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

from lipscale.certificates import certified_accuracy, epsilon_names
from lipscale.errors import UserError
from lipscale.experiments.plan import Planned, Row, describe
from lipscale.metrics import ece_limit
from lipscale.report.record import Answers, Facts, read_facts
from lipscale.runs.folder import VERSIONS, read_json
from lipscale.runs.settings import Settings


@dataclass(frozen=True)
class Result:
    """A finished run."""

    planned: Planned
    facts: Facts

    @property
    def settings(self) -> Settings:
        """The settings, with every `auto` decided."""
        return self.facts.settings

    @property
    def metrics(self) -> dict[str, Any]:
        """What was measured on the test set, as in metrics.json."""
        return self.facts.metrics

    @property
    def answers(self) -> Answers:
        """Logits, labels and radii of the test set."""
        assert self.facts.answers is not None
        return self.facts.answers

    @property
    def constrained(self) -> bool:
        """Whether the network has a Lipschitz constant, and so a certificate."""
        return self.metrics["lipschitz_constant"] is not None

    @property
    def constant(self) -> float:
        """L."""
        return float(self.metrics["lipschitz_constant"])

    @property
    def epochs(self) -> int:
        """The epochs that it took, of both phases."""
        return int(self.metrics["phase1_epochs"] + self.metrics["phase2_epochs"])

    def certified(self, epsilon: float) -> float:
        """Certified robust accuracy, CRA, from the stored radii; nothing is proven without a constant."""
        (share,) = certified_accuracy(self.answers.certified, [epsilon]).values()
        return share if self.constrained else 0.0

    @cached_property
    def limit(self) -> float:
        """The most that the ECE of a calibrated network may show, by one measure for all methods.

        LiST's T* comes from a tenth of the data and is not known better; every network gets the same allowance.
        """
        return self._limit(self.metrics["calibration_size"] or round(self.metrics["train_size"] / 10))

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
        return bool(self.metrics["ece"] <= self.limit)

    @property
    def robust(self) -> dict[str, Any] | None:
        """What the planned attack left (robust_accuracy, interval, samples), if it was made on enough samples."""
        attack = self.planned.attack
        if attack is None:
            return None
        row = self.facts.robustness.get(attack.name, {}).get("at", {}).get(epsilon_names([attack.epsilon])[0])
        enough = row is not None and row["samples"] >= min(attack.samples, self.metrics["test_size"])
        return row if enough else None


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
        facts = read_facts(place, describe(run), with_samples=False)
    except (UserError, KeyError, TypeError):
        return None
    return Result(run, facts) if current and facts.answers is not None and facts.history else None
