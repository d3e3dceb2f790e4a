"""What a module does with its input for real: code that asks whether it is being traced must not get away with it."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode, resolve_name
from torch.utils._pytree import tree_leaves


class Watch(TorchFunctionMode):
    """Counts what is called on an input and on all that comes of it, outside of parts that have rules of their own.

    Whoever decides by a value has to read it, and torch hears of every way to do so: item(), numpy(), a truth value.
    The graph of the same module, which holds no decisions, makes none of these calls.
    """

    def __init__(self, x: Tensor) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()
        self.parts = 0  # that are at work
        self.held = {id(x): x}  # what came of the input, kept so that no other tensor takes its place

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """One call, with what it was called on."""
        if self.parts:
            return func(*args, **(kwargs or {}))
        comes_of_input = self.comes_of_input((args, kwargs))
        if comes_of_input:
            self.calls[resolve_name(func) or repr(func)] += 1
        result = func(*args, **(kwargs or {}))
        if comes_of_input:
            self.hold(result)
        return result

    def comes_of_input(self, values: Any) -> bool:
        """Whether any of these does."""
        return any(id(value) in self.held for value in tree_leaves(values))

    def hold(self, values: Any) -> None:
        """From now on these do."""
        self.held |= {id(value): value for value in tree_leaves(values) if isinstance(value, Tensor)}

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
