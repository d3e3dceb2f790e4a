"""When a hand-written gradient, or one operation in place of several modules, must step back."""

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import nn


def is_traced() -> bool:
    """Whether torch.compile, export, jit or func is at work: they want ordinary operations, and some fuse them."""
    return torch.compiler.is_compiling() or torch.jit.is_tracing() or torch._C._are_functorch_transforms_active()


Hook = TypeVar("Hook", bound=Callable[..., Any])


def onlooker(hook: Hook) -> Hook:
    """A hook that only looks, and for which nothing may go another way."""
    hook.__dict__["looks_on"] = True
    return hook


def is_watched(module: nn.Module) -> bool:
    """Whether forward hooks wait for this module to be called, but for mere onlookers."""
    hooks = (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
    return not all(getattr(hook, "looks_on", False) for hook in hooks)
