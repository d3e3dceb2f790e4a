"""Accuracy, negative log-likelihood, Brier score: means over samples."""

import torch
from torch import Tensor

from lipscale.metrics.predictions import Predictions


def accuracy(logits: Tensor, labels: Tensor, *, probabilities: bool = False) -> float:
    """The fraction of samples whose most probable class is the true one."""
    return float(Predictions.of(logits, labels, probabilities=probabilities).correct.mean())


def nll(logits: Tensor, labels: Tensor, *, probabilities: bool = False) -> float:
    """The negative log-likelihood, mean of -log p_y."""
    return float(nll_of(Predictions.of(logits, labels, probabilities=probabilities)).mean())


def brier(logits: Tensor, labels: Tensor, *, probabilities: bool = False) -> float:
    """The multi-class Brier score, mean of sum_c (p_c - 1[c = y])^2, between 0 and 2."""
    return float(brier_of(Predictions.of(logits, labels, probabilities=probabilities)).mean())


def nll_of(predictions: Predictions) -> Tensor:
    """-log p_y of each sample, (N,)."""
    return -predictions.log_probabilities.gather(1, predictions.labels.unsqueeze(1)).squeeze(1)


def brier_of(predictions: Predictions) -> Tensor:
    """sum_c (p_c - 1[c = y])^2 = sum_c p_c^2 - 2 p_y + 1 of each sample, (N,)."""
    truth = torch.exp(-nll_of(predictions))
    return predictions.probabilities.square().sum(1) - 2 * truth + 1
