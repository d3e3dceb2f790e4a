"""Raw files -> class, probability and certified radius."""

import csv
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from io import StringIO
from typing import Any

import torch
from torch import Tensor

from lipscale.certificates import Threshold, certify, decided
from lipscale.data.inputs import read_inputs
from lipscale.runs.run import Run

__all__ = ["Prediction", "as_csv", "as_json", "predict", "read_inputs"]


@dataclass(frozen=True)
class Prediction:
    """One answer; the class cannot change within `radius` of the input, in `unit`."""

    source: str
    label: str
    probability: float
    radius: float
    unit: str
    lowest: float | None = None  # with an epsilon: the range in which the probability stays
    highest: float | None = None


def predict(
    run: Run,
    inputs: Tensor,
    sources: Sequence[str],
    *,
    epsilon: float | None = None,
    threshold: Threshold | None = None,
) -> list[Prediction]:
    """Classify network inputs (N, *input_shape); `epsilon` asks for the certified range of each probability."""
    certificate = certify(run.net, inputs.to(next(run.net.parameters()).device))
    classes, radii = decided(certificate, threshold)
    probabilities = torch.softmax(certificate.logits, 1).gather(1, classes.unsqueeze(1)).squeeze(1)
    rows = zip(sources, classes.tolist(), probabilities.tolist(), radii.tolist(), strict=True)
    answers = [Prediction(source, run.classes[c], p, r, run.preprocessing.unit) for source, c, p, r in rows]
    if epsilon is None:
        return answers
    lower, upper = (end.tolist() for end in certificate.confidence(epsilon, classes))
    return [replace(a, lowest=lo, highest=hi) for a, lo, hi in zip(answers, lower, upper, strict=True)]


def as_csv(answers: Sequence[Prediction]) -> str:
    """Predictions as a CSV table with a header."""
    text, rows = StringIO(), _rows(answers)
    writer = csv.DictWriter(text, rows[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def as_json(answers: Sequence[Prediction]) -> str:
    """Predictions as a JSON list."""
    return json.dumps(_rows(answers), indent=2)


def _rows(answers: Sequence[Prediction]) -> list[dict[str, Any]]:
    return [{name: value for name, value in asdict(answer).items() if value is not None} for answer in answers]
