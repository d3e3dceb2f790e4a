"""What post-hoc calibration would change about a network: accuracy, NLL, ECE, and what becomes of its certificate.

A calibrator has to be fitted on samples that the network never trained on. Phase II trains on the calibration part, and
so do all methods that have none; hence the test part calibrates itself in turns: the answers of a fifth come from a
calibrator that was fitted on the other four fifths. A run without Phase II has its calibration part to offer instead.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from lipscale._random import random_stream
from lipscale.calibration.posthoc import CALIBRATORS, Calibrator, calibrator
from lipscale.certificates import certified_accuracy
from lipscale.certificates.certificate import Certificate
from lipscale.certificates.proof import Proof
from lipscale.certificates.recalibrated import recalibrated_radius
from lipscale.errors import UserError
from lipscale.metrics import measure
from lipscale.metrics.tolerance import TOLERANCE

FOLDS = 5
SOME, MANY = (
    ("none", "temperature", "vector"),
    400_000,
)  # what is tried unasked; logits, from which on vector takes long


@dataclass(frozen=True)
class Recalibrated:
    """What a calibrator would make of a network."""

    accuracy: float
    nll: float
    ece: float
    ece_limit: float  # what a calibrated model would stay below, the error of a T* from so many samples allowed for
    calibrated: bool | None  # to within the tolerance; none where the samples cannot decide
    radii: Literal["kept", "own", "none"]  # whether the network's radii hold as they are, others do, or none is proven
    certified_accuracy: dict[str, float]  # by epsilon; empty where none is proven
    median_radius: float | None


@dataclass(frozen=True)
class Posthoc:
    """What post-hoc calibrators would change."""

    fitted_on: Literal["calibration", "test"]  # the run's calibration part, or the test part in turns
    samples: int  # that each calibrator was fitted on
    rows: dict[str, Recalibrated]  # by calibrator; none is the network as it is


def try_calibrators(
    certificate: Certificate,
    labels: Tensor,
    names: Sequence[str],
    *,
    at_zero: float,
    epsilons: Sequence[float] = (),
    calibration: tuple[Tensor, Tensor] | None = None,
    tolerance: float = TOLERANCE,
) -> Posthoc:
    """Fit each calibrator on the calibration logits and labels, or on the test part in turns, and measure it.

    Args:
        certificate: Of the test part, (N,) samples.
        labels: Of the test part, (N,).
        names: Among `lipscale.calibration.posthoc.CALIBRATORS`.
        at_zero: The norm of the network's logits at x = 0.
        epsilons: Of the certified accuracy.
        calibration: Logits and labels that the network never trained on; left out, the test part in turns.
        tolerance: Of the verdict on calibration.

    Returns:
        A row for each calibrator.
    """
    if unknown := [name for name in names if name not in CALIBRATORS]:
        raise UserError(f"unknown calibrator {unknown[0]!r}; known: {', '.join(CALIBRATORS)}")
    if calibration is None and len(labels) < FOLDS:
        raise UserError(f"post-hoc calibration in turns needs at least {FOLDS} test samples, got {len(labels)}")
    fitted = len(labels) - len(labels) // FOLDS if calibration is None else len(calibration[1])
    rows = {}
    for name in names:
        logits, radii = torch.empty_like(certificate.logits), torch.zeros_like(certificate.norms)
        certified = certificate.bound < float("inf")
        for found, kept in _fitted(name, certificate.logits, labels, calibration):
            logits[kept] = found.transform(certificate.logits[kept])
            proven = recalibrated_radius(_rows(certificate, kept), found, at_zero) if certified else None
            certified, radii[kept] = proven is not None, 0.0 if proven is None else proven
        rows[name] = _row(name, logits, labels, radii if certified else None, epsilons, fitted, tolerance)
    return Posthoc("test" if calibration is None else "calibration", fitted, rows)


def logits_at_zero(proof: Proof, shape: Sequence[int]) -> float:
    """The norm of a network's logits at x = 0, from above."""
    device = next(proof.net.parameters()).device
    found = proof(torch.zeros(1, *shape, device=device))
    return float(found.logits.norm() + found.error.at(found.norms).sum())


def _fitted(
    name: str, logits: Tensor, labels: Tensor, calibration: tuple[Tensor, Tensor] | None
) -> Iterator[tuple[Calibrator, Tensor]]:
    """Calibrators, and the rows (as a mask) that each one is for: none of them was fitted on those."""
    if calibration is not None:
        yield calibrator(name).fit(*calibration), torch.ones_like(labels, dtype=torch.bool)
        return
    order = torch.randperm(len(labels), generator=random_stream(0, "posthoc")).to(labels.device)
    for turn in range(FOLDS):
        kept = order % FOLDS == turn
        yield calibrator(name).fit(logits[~kept], labels[~kept]), kept


def _rows(certificate: Certificate, kept: Tensor) -> Certificate:
    logits, norms = certificate.logits[kept], certificate.norms[kept]
    return Certificate(certificate.bound, certificate.pairwise, logits, norms, certificate.error)


def _row(
    name: str,
    logits: Tensor,
    labels: Tensor,
    radii: Tensor | None,
    epsilons: Sequence[float],
    fitted: int,
    tolerance: float,
) -> Recalibrated:
    scores = measure(logits, labels, calibration_size=0 if name == "none" else fitted, tolerance=tolerance)
    keeps = "none" if radii is None else "kept" if CALIBRATORS[name].keeps_radii else "own"
    right = logits.argmax(1) == labels
    return Recalibrated(
        *(scores.accuracy, scores.nll, scores.ece, scores.ece_limit, scores.calibrated),
        radii=keeps,  # type: ignore[arg-type]
        certified_accuracy={} if radii is None else certified_accuracy(radii * right, epsilons),
        median_radius=None if radii is None else float(radii.median()),
    )
