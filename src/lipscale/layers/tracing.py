"""When a hand-written gradient must step back."""

import torch


def is_traced() -> bool:
    """Whether torch.compile, torch.export or torch.func is at work: they want ordinary operations, and fuse them."""
    return torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()
