"""Smooth ECE (Blasiok and Nakkiran, 2024): a calibration error without bins and without a bandwidth to choose."""

import math

import torch
from torch import Tensor

from lipscale.metrics.predictions import Predictions

GRID = 4096  # cells of the grid on which gaps are smoothed
FINEST = 2 / GRID  # a narrower kernel would see the grid


def smooth_ece(logits: Tensor, labels: Tensor, *, probabilities: bool = False) -> float:
    """smECE_sigma at the bandwidth where smECE_sigma = sigma."""
    gaps = grid_of_gaps(Predictions.of(logits, labels, probabilities=probabilities))
    return min(1.0, float(smooth_ece_at(gaps, bandwidth(gaps))))  # the integral may round above it


def grid_of_gaps(predictions: Predictions) -> Tensor:
    """(confidence - correct) / N of each sample, shared between its two neighbours on the grid, (GRID + 1,)."""
    place = predictions.confidence * GRID
    below = place.long().clamp(max=GRID - 1)
    gap = (predictions.confidence - predictions.correct) / len(predictions)
    above = (place - below) * gap
    masses = (torch.bincount(i, w, minlength=GRID + 1) for i, w in ((below, gap - above), (below + 1, above)))
    return sum(masses, torch.zeros(GRID + 1, dtype=torch.float64, device=gap.device))


def bandwidth(gaps: Tensor) -> float:
    """The root of smECE_sigma - sigma, which falls in sigma: by bisection."""
    low, high = FINEST, 1.0
    if float(smooth_ece_at(gaps, low)) <= low:
        return low
    while high - low > 1e-7:
        middle = (low + high) / 2
        low, high = (middle, high) if float(smooth_ece_at(gaps, middle)) > middle else (low, middle)
    return high


def smooth_ece_at(gaps: Tensor, sigma: float) -> Tensor:
    """smECE_sigma = int_0^1 |sum_i K_sigma(t, f_i) gap_i| dt, K the Gaussian kernel reflected at 0 and 1.

    Reflection makes cosines the kernel's eigenfunctions: cos(pi k t) shrinks by exp(-(pi k sigma)^2 / 2). The gaps may
    carry leading axes: (..., GRID + 1) -> (...).
    """
    cells = gaps.shape[-1] - 1
    inner = gaps[..., 1:-1] / 2  # mirrored to a circle of circumference 2, interior masses appear twice
    circle = torch.cat((gaps[..., :1], inner, gaps[..., -1:], inner.flip(-1)), -1)
    waves = torch.fft.rfft(circle)
    k = torch.arange(cells + 1, dtype=torch.float64, device=gaps.device)
    density = 2 * cells * torch.fft.irfft(waves * torch.exp(-((math.pi * sigma * k) ** 2) / 2), n=2 * cells)
    return torch.trapezoid(density[..., : cells + 1].abs(), dx=1 / cells)
