"""When a hand-written gradient must step back."""

import torch


def is_traced() -> bool:
    """Whether torch.compile, export, jit or func is at work: they want ordinary operations, and some fuse them."""
    return torch.compiler.is_compiling() or torch.jit.is_tracing() or torch._C._are_functorch_transforms_active()
