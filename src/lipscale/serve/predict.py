"""An answer: all classes with their probabilities, the radius, and how these hold when the input changes."""

from dataclasses import replace
from math import isfinite, isnan
from typing import Any

import torch
from torch import Tensor

from lipscale._random import random_stream
from lipscale.attacks.ball import direction, norms, value_and_gradient
from lipscale.certificates import Certificate
from lipscale.data.encode import raw_radii
from lipscale.data.inputs import Inputs, column_names
from lipscale.losses import margin
from lipscale.report.samples import as_png
from lipscale.serve import schemas
from lipscale.serve.changes import shown_change, with_norm
from lipscale.serve.served import Served

RANGED = 10  # classes whose probabilities have ranges
BEYOND, GRID = 2.5, 50  # ranges are told up to so many times the radius, in so many steps: one of them is the radius
ENDLESS = 1e6  # a radius that no picture and no grid can show


def predict(served: Served, question: Any) -> schemas.Answer:
    """Answer a question."""
    inputs, x, certificate = served.certified(question)
    radius, probabilities = float(certificate.radius()), torch.softmax(certificate.logits[0], 0)
    chances = served.chances(probabilities)
    epsilons = _epsilons(served, radius, question.epsilons)
    if epsilons:
        first = probabilities.argsort(descending=True, stable=True)[:RANGED]
        for chance, lower, upper in zip(chances, *_ranges(certificate, epsilons, first), strict=False):
            chance.lowest, chance.highest = lower, upper
    parts = _rooms(served, inputs, radius) if served.is_table else _pictures(served, x, radius)
    return schemas.Answer(
        label=chances[0].label,
        probability=chances[0].probability,
        radius=_finite(radius),
        unit=served.run.preprocessing.unit,
        epsilons=epsilons,
        classes=chances,
        **parts,
    )


def _epsilons(served: Served, radius: float, asked: list[float] | None) -> list[float]:
    """For which sizes of changes ranges are told."""
    if not served.is_certified:
        return []
    reach = BEYOND * radius if 0 < radius < ENDLESS else max(served.run.settings.epsilons, default=1.0)
    return torch.linspace(0, reach, GRID + 1, dtype=torch.float64).tolist() if asked is None else asked


def _ranges(certificate: Certificate, epsilons: list[float], classes: Tensor) -> tuple[list[Any], list[Any]]:
    """Between which ends the probability of each class stays for changes up to each epsilon, (K, E) and (K, E)."""
    eps = torch.tensor(epsilons, dtype=torch.float64, device=classes.device)
    count = len(eps) * len(classes)
    many = replace(certificate, logits=certificate.logits.expand(count, -1), norms=certificate.norms.expand(count))
    lower, upper = many.confidence(eps.repeat(len(classes)), classes.repeat_interleave(len(eps)))
    return lower.view(-1, len(eps)).tolist(), upper.view(-1, len(eps)).tolist()


def _rooms(served: Served, inputs: Inputs, radius: float) -> dict[str, Any]:
    """How far each number of a row may move by itself."""
    done, rooms = served.run.preprocessing, []
    assert inputs.raw is not None
    if served.is_certified:
        moves = raw_radii(torch.tensor([radius], dtype=torch.float64), inputs.raw, done)[0].tolist()
        named = zip(column_names(done), inputs.raw[0].tolist(), moves, strict=True)
        # a category has no radius, and neither has a missing number, which is named
        rooms = [(name, value, move) for name, value, move in named if not isnan(move) or isnan(value)]
    return {
        "columns": [schemas.Room(name=n, value=_finite(v), radius=_finite(r)) for n, v, r in rooms],
        "outside": [name for name in inputs.outside[0].split(", ") if name],
    }


def _pictures(served: Served, x: Tensor, radius: float) -> dict[str, Any]:
    """The picture as it is seen, and changes of exactly the radius."""
    seen = {"seen": as_png(x[0])}
    if not 0 < radius < ENDLESS:
        return seen
    _, slope = value_and_gradient(lambda points: -margin(served.searching(points)), x)
    ways = {"random": direction(x, random_stream(0, "change")), "steepest": slope / norms(slope)}
    return seen | {
        name: shown_change(x, with_norm(x.double(), way.double(), radius, served.box)) for name, way in ways.items()
    }


def _finite(value: float) -> float | None:
    return value if isfinite(value) else None
