"""cayley: the Cayley transform of every symbol (Trockman and Kolter, 2021)."""

import torch
from torch import Tensor, nn

from lipscale.layers.families.formula import random_taps
from lipscale.layers.families.frequencies import frequency_family


def cayley(raw: Tensor, outputs: int, inputs: int) -> Tensor:
    """[(I + A)^-1 (I - A); -2 V (I + A)^-1] with A = U - U* + V* V of raw = [U; V]; if wide, its adjoint.

    I + A has a symmetric part of at least I: it can always be inverted, and the columns are orthonormal.
    """
    few = raw.shape[-1]
    u, v = raw[..., :few, :], raw[..., few:, :]
    eye = torch.eye(few, dtype=raw.dtype, device=raw.device)
    a = u - u.mH + v.mH @ v
    inverse = torch.linalg.inv(eye + a)
    tall = torch.cat((inverse @ (eye - a), -2 * v @ inverse), -2)
    return tall if outputs >= inputs else tall.mH


def start(outputs: int, inputs: int, kernel_size: int) -> nn.Parameter:
    """Symbols of about norm 1, as tall as the taller side."""
    return random_taps(max(outputs, inputs), min(outputs, inputs), kernel_size)


CAYLEY = frequency_family(
    "cayley",
    "Trockman and Kolter, 2021",
    "an inverse c x c for each of h (w / 2 + 1) frequencies, two transforms of the image",
    start=start,
    train=cayley,
)
