"""Selective classification: how many answers are wrong among those that a classifier is surest of.

With the samples in order of confidence, risk(n) is the share of errors among the first n (Geifman and El-Yaniv, 2017).
Of equal confidences no order is known: then it is the mean over all orders.
"""

import math

import torch
from torch import Tensor

from lipscale.errors import UserError
from lipscale.metrics.predictions import Predictions

COVERAGE = 0.8  # of the selective risk, unless another one is asked for


def aurc(logits: Tensor, labels: Tensor, *, probabilities: bool = False) -> float:
    """The area under the risk-coverage curve, mean over n of risk(n): 0 is perfect, lower is better."""
    return float(_risks(Predictions.of(logits, labels, probabilities=probabilities)).mean())


def selective_risk(logits: Tensor, labels: Tensor, coverage: float = COVERAGE, *, probabilities: bool = False) -> float:
    """The share of errors among the most confident ceil(coverage N) of N samples."""
    risks = _risks(Predictions.of(logits, labels, probabilities=probabilities))
    return float(risks[answered(coverage, len(risks)) - 1])


def _risks(predictions: Predictions) -> Tensor:
    _, group = predictions.confidence.unique(return_inverse=True)  # from the least confident on
    errors, count = (1 - predictions.correct), torch.bincount(group)
    expected = torch.bincount(group, errors) / count
    return risks_in_order(expected[group.sort(descending=True).values])


def risks_in_order(errors: Tensor) -> Tensor:
    """risk(1), ..., risk(N), for errors (N,) in order of confidence, the surest first."""
    return errors.double().cumsum(0) / torch.arange(1, len(errors) + 1, device=errors.device)


def answered(coverage: float, samples: int) -> int:
    """How many of the samples a coverage is: ceil(coverage N)."""
    if not 0 < coverage <= 1:
        raise UserError(f"expected a coverage above 0 and up to 1, got {coverage:g}")
    return math.ceil(coverage * samples)
