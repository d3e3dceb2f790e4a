"""The curves behind the figures and the page's sliders: a few hundred points, whatever the size of the test set."""

import torch

from lipscale.certificates.certificate import certified_accuracy_curve
from lipscale.report.record import Answers

POINTS = 400  # more steps than a reader can tell apart


def certified_curve(answers: Answers) -> tuple[list[float], list[float]]:
    """Epsilons from zero to the largest radius, and the certified accuracy at each."""
    steps, shares = certified_accuracy_curve(answers.certified.clamp(max=1e6))
    if len(steps) == 0:
        return [0.0, 1.0], [0.0, 0.0]
    keep = torch.linspace(0, len(steps) - 1, min(POINTS, len(steps))).round().long()
    end = float(steps[-1])
    return [0.0, *steps[keep].tolist(), end], [float(shares[0]), *shares[keep].tolist(), 0.0]


def selective(answers: Answers) -> tuple[list[float], list[float], list[float]]:
    """Thresholds on the confidence, the share of samples at or above each, and the accuracy among those."""
    confidence, order = answers.confidence.sort()
    right = answers.right[order].double()
    n = len(confidence)
    keep = torch.linspace(0, n - 1, min(POINTS, n)).round().long()
    left = torch.arange(n, 0, -1, dtype=torch.float64)  # samples at or above the i-th smallest confidence
    accuracy = right.flip(0).cumsum(0).flip(0) / left
    return confidence[keep].tolist(), (left / n)[keep].tolist(), accuracy[keep].tolist()
