"""The one evaluation mode: the network as it would be shipped."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from lipscale.layers.scale import ScaledLayer


@contextmanager
def evaluation_mode(net: nn.Module) -> Iterator[nn.Module]:
    """Within, the network in evaluation, its orthogonal weights computed anew, and without gradients.

    `net.eval()` is right by itself in every way but one: weights that were written through `.data` since the last
    evaluation are not noticed. Here they are. On leaving, every module is in the mode that it came in.

    Args:
        net: The network. With an averaging optimizer such as ScheduleFree call `optimizer.eval()` first.

    Returns:
        A context manager that yields the network.

    Example:
        >>> import torch, lipscale
        >>> net = lipscale.models.mlp(num_classes=3, input_shape=4, width=8)
        >>> with lipscale.evaluation_mode(net):
        ...     logits = net(torch.rand(5, 4))
        >>> net.training, logits.requires_grad
        (True, False)
    """
    was_training = [module for module in net.modules() if module.training]
    net.eval()
    drop_caches(net)
    try:
        with torch.no_grad():
            yield net
    finally:
        for module in was_training:  # each by itself: a part may have been frozen
            module.training = True
        drop_caches(net)


def drop_caches(net: nn.Module) -> None:
    """Let the next evaluation see the parameters as they are: version counters miss what was written through .data."""
    for module in net.modules():
        if isinstance(module, ScaledLayer):
            module.drop_cache()
