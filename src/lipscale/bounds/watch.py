"""What a module does with its input for real: code that asks whether it is being traced should not get away with it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode, resolve_name
from torch.utils._pytree import tree_leaves, tree_map

SIZES = ("shape", "ndim")


class Watch(TorchFunctionMode):
    """Takes down what is called on an input and on all that comes of it, outside of parts that have their own rules.

    Whoever decides by a value has to read it, and torch hears of item(), numpy(), truth values and the like. The graph
    of the same module, which holds no decisions, makes the same calls but for these, with the same constants.
    """

    def __init__(self, x: Tensor) -> None:
        super().__init__()
        self.calls: list[Any] = []
        self.parts = 0  # that are at work
        self.held: dict[int, tuple[int, Tensor]] = {}  # by memory; tensors are kept, so that no other one takes it over
        self.hold(x)

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """One call, with what it was called on."""
        kwargs = kwargs or {}
        heard = not self.parts and self.comes_of_input((args, kwargs))
        told = tree_map(self._told, (args, kwargs)) if heard else None  # before it, since it may write to them
        result = func(*args, **kwargs)
        if heard:
            name = resolve_name(func) or repr(func)
            asks = name.endswith("__get__") and not isinstance(result, Tensor)  # for a property
            # torch calls view_as by itself; a type or a device says nothing about values
            if func is not Tensor.view_as and (not asks or name.split(".")[-2] in SIZES):
                self.calls.append((name, told))
            self.hold(result)
        return result

    def _told(self, value: Any) -> Any:
        """An argument so that it can be compared with that of another run."""
        if not isinstance(value, Tensor):
            return value if isinstance(value, int | float | str | None) else repr(value)
        place = (tuple(value.shape), value.stride(), value.storage_offset(), str(value.dtype))
        if self.comes_of_input(value):
            return self.held[_memory(value)][0], place
        return hash(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()), place

    def comes_of_input(self, values: Any) -> bool:
        """Whether any of these does, or shares its memory with what does."""
        return any(isinstance(value, Tensor) and _memory(value) in self.held for value in tree_leaves(values))

    def hold(self, values: Any) -> None:
        """From now on these do."""
        for value in tree_leaves(values):
            if isinstance(value, Tensor):
                self.held.setdefault(_memory(value), (len(self.held), value))

    def differs_from(self, other: "Watch") -> str | None:
        """The first call that the two do not share, if there is one."""
        for mine, yours in zip(self.calls, other.calls, strict=False):
            if mine != yours:
                return str(mine[0])
        shorter, longer = sorted((self.calls, other.calls), key=len)
        return str(longer[len(shorter)][0]) if len(shorter) < len(longer) else None

    @contextmanager
    def leaving_alone(self, parts: list[nn.Module]) -> Iterator[None]:
        """Within, parts may do what they like with what they are given: their rules answer for them."""

        def begin(*_: Any) -> None:
            self.parts += 1

        def end(_: nn.Module, inputs: Any, result: Any) -> None:
            self.parts -= 1
            if self.comes_of_input(inputs):
                self.hold(result)

        hooks = [part.register_forward_pre_hook(begin) for part in parts]
        hooks += [part.register_forward_hook(end, always_call=True) for part in parts]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()


def _memory(value: Tensor) -> int:
    with torch._C.DisableTorchFunction():
        try:
            return value.untyped_storage().data_ptr()
        except (NotImplementedError, RuntimeError):  # a sparse one, say, has none
            return id(value)
