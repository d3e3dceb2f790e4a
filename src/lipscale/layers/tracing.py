"""When a hand-written gradient, or one operation in place of several modules, must step back."""

import torch
from torch import nn


def is_traced() -> bool:
    """Whether torch.compile, export, jit or func is at work: they want ordinary operations, and some fuse them."""
    return torch.compiler.is_compiling() or torch.jit.is_tracing() or torch._C._are_functorch_transforms_active()


def is_watched(module: nn.Module) -> bool:
    """Whether hooks wait for this module to be called."""
    return bool(module._forward_hooks or module._forward_pre_hooks)
