"""bro: block reflectors (Lai et al., 2025), I - 2 P with a projector P of half the rank."""

import torch
from torch import Tensor, nn

from lipscale.layers.families.formula import random_taps
from lipscale.layers.families.frequencies import frequency_family

# relative to the trace: keeps the inverse finite. The norm is at most 1 for every value >= 0, and 1 to the last digits
# for this one
EPSILON = 1e-7
LEAST = 1e-20  # of a trace: nothing reflects nothing


def reflector(raw: Tensor, outputs: int, inputs: int) -> Tensor:
    """I - 2 V (V* V + eps I)^-1 V* of raw = V, cut to its first rows and columns."""
    gram = raw.mH @ raw
    size = gram.diagonal(dim1=-2, dim2=-1).real.mean(-1)[..., None, None]
    rank = torch.eye(raw.shape[-1], dtype=raw.dtype, device=raw.device)
    eps = max(EPSILON, 8 * torch.finfo(size.dtype).eps) * size.clamp_min(LEAST)
    projected = raw[..., :outputs, :] @ torch.linalg.solve(gram + eps * rank, raw[..., :inputs, :].mH)
    return torch.eye(outputs, inputs, dtype=raw.dtype, device=raw.device) - 2 * projected


def start(outputs: int, inputs: int, kernel_size: int) -> nn.Parameter:
    """As many channels as the larger side has, and half the rank."""
    channels = max(outputs, inputs)
    return random_taps(channels, channels // 2, kernel_size)


BRO = frequency_family(
    "bro",
    "Lai et al., 2025",
    "a solution of rank c / 2 for each of h (w / 2 + 1) frequencies, two transforms of the image",
    start=start,
    train=reflector,
)
