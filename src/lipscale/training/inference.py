"""The logits of a whole set of samples, by a network in evaluation mode."""

import torch
from torch import Tensor, nn

from lipscale import _processes as processes
from lipscale.data import Samples, as_input
from lipscale.data.dataset import stacked
from lipscale.training.batches import MEASURED_AT_ONCE, Batches


@torch.no_grad()
def predict(net: nn.Module, data: Batches) -> tuple[Tensor, Tensor]:
    """The logits (N, C) and labels (N,) of all samples."""
    logits, labels = stacked((net(inputs), labels) for inputs, labels in data.in_order())
    return processes.gather(logits), processes.gather(labels)


@torch.no_grad()
def predict_logits(net: nn.Module, samples: Samples, *, batch_size: int = MEASURED_AT_ONCE) -> Tensor:
    """The logits (N, C) of samples in memory or on disk, a few hundred at a time."""
    every = torch.arange(len(samples), device=samples.labels.device)
    return torch.cat([net(as_input(samples.inputs[chunk])) for chunk in every.split(batch_size)])
