"""The logits of a whole set of samples, in evaluation mode."""

import torch
from torch import Tensor, nn

from lipscale import _processes as processes
from lipscale.data import Samples, as_input
from lipscale.layers.evaluation import evaluation_mode


@torch.no_grad()
def predict_logits(net: nn.Module, samples: Samples, *, batch_size: int = 512) -> Tensor:
    """The logits of all samples, (N, C), in evaluation mode."""
    mine = processes.shard(torch.arange(len(samples), device=samples.labels.device)).split(batch_size)
    with evaluation_mode(net):
        return processes.gather(torch.cat([net(as_input(samples.inputs[chunk])) for chunk in mine]))
