"""What do I gain? LiST beside what people would use instead, on the same training and test part of one set."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from lipscale import runs
from lipscale.calibration.posthoc import TemperatureScaling
from lipscale.data import Dataset, Samples, as_input, prepare, read_dataset, stratified
from lipscale.experiments.plan import AttackBudget, Planned, Row
from lipscale.experiments.results import Result, Results
from lipscale.experiments.table_models import TABLE_MODELS, fitted
from lipscale.metrics import Scores, measure
from lipscale.settings import Settings
from lipscale.settings import replace as change

LIST, TWIN, SCALED = "LiST", "twin", "twin + temperature"
ATTACKED = 200  # test samples
HELD_OUT = 0.1  # of the training part, for the temperature of a twin that must not train on it
OF_A_CLASS = 10  # samples at least, on average


@dataclass(frozen=True)
class Answered:
    """What one classifier said about the test samples, and what is proven and attacked of it, if anything."""

    logits: Tensor  # (N, C), or log-probabilities
    labels: Tensor  # (N,)
    scores: Scores
    seconds: float  # of training, by the processor's clock
    proven: Tensor | None = None  # (N,): right, and proven to stay so up to the first epsilon
    attacked: float | None = None  # accuracy

    @property
    def certified(self) -> float | None:
        """Certified accuracy; none where nothing can be proven."""
        return None if self.proven is None else float(self.proven.double().mean())

    @cached_property
    def losses(self) -> Tensor:
        """-log p of the true class, of each sample: (N,)."""
        return -self.logits.double().log_softmax(1).gather(1, self.labels.unsqueeze(1)).squeeze(1)


@dataclass(frozen=True)
class Candidate:
    """A way to get a classifier, under several seeds."""

    name: str
    seeds: Sequence[Answered]

    def mean(self, value: Callable[[Answered], float | None]) -> float | None:
        """The mean over seeds; none where there is nothing to be measured."""
        found = [v for seed in self.seeds if (v := value(seed)) is not None]
        return fmean(found) if found else None


@dataclass(frozen=True)
class Comparison:
    """What is compared, by which settings, on which data."""

    settings: Settings  # of LiST; the others differ in the method alone
    dataset: Dataset  # as the files have it, all of the training part
    seeds: int

    @classmethod
    def of(cls, settings: Settings, *, seeds: int) -> "Comparison":
        """A comparison by the settings of a run; the data are read, because their size decides on what is held out."""
        return cls(settings, read_dataset(settings), seeds)

    def rows(self) -> list[Row]:
        """The networks: LiST, its unconstrained twin on all data, and one that leaves out what calibrates it."""
        twin = {"method": "standard", "layers": "fast"}  # ordinary ones
        methods: dict[str, dict[str, Any]] = {LIST: {}, TWIN: twin, SCALED: {**twin, "limit": self._kept}}
        attack = AttackBudget("pgd", self.epsilon, ATTACKED)
        return [
            Row(name, tuple(Planned(change(self.settings, **how, seed=seed), attack) for seed in range(self.seeds)))
            for name, how in methods.items()
        ]

    def candidates(self, results: Results, folder: Path, on_fit: Callable[[str], None]) -> list[Candidate]:
        """What became of each: the finished networks, and for tables what scikit-learn fits here and now, or did."""
        networks = {row.name: results.of(row) for row in self.rows()}
        found = [Candidate(name, [_of_network(run, self.epsilon) for run in made]) for name, made in networks.items()]
        scaled = [self._scaled(run, folder) for run in networks[SCALED]]
        found = [Candidate(SCALED, scaled) if candidate.name == SCALED else candidate for candidate in found]
        if self.is_table:
            found += [Candidate(name, self._table_models(name, folder, on_fit)) for name in TABLE_MODELS]
        return [candidate for candidate in found if candidate.seeds]

    @property
    def is_table(self) -> bool:
        """Whether there are rows of numbers, which scikit-learn's models take, and not pictures."""
        return len(self.dataset.input_shape) == 1

    @property
    def epsilon(self) -> float:
        """At which it is certified and attacked."""
        return self.settings.epsilons[0]

    @property
    def majority_rate(self) -> float:
        """What always answering the commonest class of the test part would get right."""
        labels = self.dataset.test.labels
        return float(torch.bincount(labels.long()).max()) / len(labels)

    @property
    def _size(self) -> int:
        return self.settings.limit or len(self.dataset.train)

    @property
    def _kept(self) -> int:
        """What the twin that is scaled trains on: all but a tenth, or enough samples of each class."""
        enough = max(round(HELD_OUT * self._size), OF_A_CLASS * len(self.dataset.classes))
        return self._size - min(self._size // 2, enough)

    def _held_out(self, seed: int) -> Samples:
        """The training samples that the scaled twin of this seed has not seen, ready for a network."""
        labels = self.dataset.train.labels
        seen, _ = stratified(labels, self._kept, seed=seed, stream="limit")
        whole, _ = stratified(labels, self._size, seed=seed, stream="limit")
        return self.dataset.train.take(whole[~torch.isin(whole, seen)])

    def _scaled(self, run: Result, folder: Path) -> Answered:
        """The twin's answers, divided by the temperature that fits what it has not seen."""
        loaded = runs.load(folder / "runs" / run.planned.name, device=run.settings.device)
        held_out = replace(self.dataset, test=self._held_out(run.settings.seed))
        calibration = prepare(held_out, loaded.preprocessing)[0].test
        where = next(loaded.net.parameters()).device
        with torch.no_grad():
            seen = [loaded.net(as_input(part).to(where)).cpu() for part in calibration.inputs.split(512)]
        logits = TemperatureScaling().fit(torch.cat(seen).double(), calibration.labels).transform(run.answers.logits)
        scores = measure(
            logits, run.answers.labels, calibration_size=len(calibration), tolerance=self.settings.calibration_tolerance
        )
        return replace(_of_network(run, self.epsilon), logits=logits, scores=scores)  # no class changes: attacks hold

    def _table_models(self, name: str, folder: Path, on_fit: Callable[[str], None]) -> list[Answered]:
        """A model of scikit-learn under every seed, on the features that the networks get."""
        answers = []
        for row in self.rows()[0].runs:
            chosen, _ = stratified(self.dataset.train.labels, self._size, seed=row.settings.seed, stream="limit")
            dataset, _ = prepare(replace(self.dataset, train=self.dataset.train.take(chosen)))
            found = fitted(name, dataset, folder / "models", seed=row.settings.seed, key=row.digest, on_fit=on_fit)
            labels = dataset.test.labels.long()
            scores = measure(found.logits, labels, tolerance=self.settings.calibration_tolerance)
            proven = None if found.radii is None else (found.radii >= self.epsilon) & (found.radii > 0)
            answer = Answered(found.logits, labels, scores, found.seconds, proven)
            answers.append(replace(answer, attacked=answer.certified))  # exact: an attack could do no more
        return answers


def _of_network(run: Result, epsilon: float) -> Answered:
    answers, left = run.answers, run.robust.robust_accuracy if run.robust else None
    radii = answers.certified
    proven = (radii >= epsilon) & (radii > 0) if run.metrics.is_certified else None
    return Answered(answers.logits, answers.labels.long(), run.metrics, run.metrics.cpu_seconds, proven, left)
