"""A unit layer with a sigma: the one place where the Lipschitz constant enters a network."""

from abc import ABC, abstractmethod
from typing import Any, Self

import torch
from torch import Tensor, nn

from lipscale.errors import UserError


class AtScale(nn.Module):
    """A module whose bias or mean lives in unit scale and is multiplied by `scale` when it is used.

    `scale` is the product of the sigmas of all layers up to and including this one. It makes the network positively
    homogeneous in L: f_L = L * f_1, so that projecting to another L touches no learned number.
    """

    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(()))


class UnitWeight(nn.Module, ABC):
    """Where a layer's weight W, with ||W|| <= 1, comes from: raw parameters and a map of them.

    `has_matrices` says whether the last two axes of the parameters are channels: what Muon knows how to step along.
    """

    has_matrices = True

    @abstractmethod
    def unit(self, *, reduced: bool = False) -> Tensor:
        """W for training: differentiable, orthogonal to a few digits at least; fewer where it will be `reduced`."""

    @abstractmethod
    def exact_unit(self) -> Tensor:
        """W for evaluation: float64, orthogonal to rounding, without gradient."""


class ScaledLayer(AtScale):
    """An affine layer that is 1-Lipschitz up to its sigma: y = sigma * (W x) + scale * b, with ||W|| = 1.

    In training, W is differentiable and in the parameters' precision, whatever precision the rest runs in.
    In evaluation, W is orthogonalised to float precision (in float64) once and cached, so that evaluation
    costs what a plain layer costs, certificates hold for the numbers in use, and two calls give equal bits.
    The cache is dropped by `train()`, by any change of a parameter or of sigma, and by moving the layer.
    In evaluation the parameters receive no gradient; inputs do.
    """

    sigma: Tensor
    bias: nn.Parameter | None

    def __init__(self, source: UnitWeight, outputs: int, *, bias: bool) -> None:
        super().__init__()
        if outputs < 1:
            raise UserError(f"expected a layer with at least one output, got {outputs}")
        self.source = source
        self.register_buffer("sigma", torch.ones(()))
        self.bias = nn.Parameter(torch.zeros(outputs)) if bias else None
        self._cache: tuple[tuple[Any, ...], Tensor] | None = None

    @property
    def weight(self) -> Tensor:
        """The weight in use, sigma * W."""
        if self.training:
            device = self.sigma.device.type
            in_bfloat16 = torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device) is torch.bfloat16
            reduced = in_bfloat16 and self.sigma.dtype is torch.float32  # others are not rounded to it
            with torch.autocast(device, enabled=False):  # composed in half precision it would not be orthogonal enough
                return self.sigma * self.source.unit(reduced=reduced)
        key = self._fingerprint()
        if self._cache is None or self._cache[0] != key:
            # never an inference tensor: attacks differentiate through the cached weight
            with torch.inference_mode(False), torch.no_grad():
                exact = self.sigma.double() * self.source.exact_unit()
                self._cache = key, exact.to(self.sigma.dtype)
        return self._cache[1]

    def scaled_bias(self) -> Tensor | None:
        """The bias in use, scale * b."""
        return None if self.bias is None else self.scale * self.bias

    def drop_cache(self) -> None:
        """Forget the evaluation weight; the next evaluation computes it anew."""
        self._cache = None

    def train(self, mode: bool = True) -> Self:
        """Switch the mode; the evaluation weight never outlives a stay in training."""
        if mode:
            self.drop_cache()
        return super().train(mode)

    def _apply(self, *args: Any, **kwargs: Any) -> Self:
        self.drop_cache()
        return super()._apply(*args, **kwargs)

    def _fingerprint(self) -> tuple[Any, ...]:
        tensors = (*self.parameters(), self.sigma)
        # tensors made in inference mode have no version: their bytes tell whether they were changed there
        versions = tuple((t.data_ptr(), _digest(t) if t.is_inference() else t._version) for t in tensors)
        return *versions, float(self.sigma)  # its value, too: versions miss what is written through .data


def _digest(tensor: Tensor) -> int:
    return hash(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
