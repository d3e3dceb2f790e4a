"""Prove what holds for every input of a network: its bound, the constants of pairs of classes, the rounding error."""

import copy
import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import cast

import torch
from torch import Tensor, nn

from lipscale.bounds import Walk, is_constrained, is_plain_sequence, require_faithful
from lipscale.certificates.affine import Affine
from lipscale.certificates.certificate import Certificate
from lipscale.certificates.forward_error import forward_error
from lipscale.errors import UserError
from lipscale.layers import OrthoLinear, batch_means, evaluation_mode
from lipscale.models.export import plain_copy

AT_ONCE = 512  # samples


@dataclass(frozen=True)
class Proof:
    """What is proven about a network, made once for a set of weights; called with inputs it certifies them."""

    net: nn.Module  # the one that answers, in the arithmetic that is certified
    input_shape: tuple[int, ...]
    dtype: torch.dtype
    bound: float  # the Lipschitz constant B
    pairwise: Tensor  # (C, C), see Certificate
    error: Affine  # of the arithmetic

    @torch.no_grad()
    def __call__(self, inputs: Tensor) -> Certificate:
        """The certificate of inputs (N, ...): each row by itself."""
        if not isinstance(inputs, Tensor) or inputs.dtype not in (torch.float32, torch.float64):
            kind = inputs.dtype if isinstance(inputs, Tensor) else type(inputs).__name__
            raise UserError(f"certificates need a tensor of float32 or float64 inputs, got {kind}")
        self._require_arithmetic(inputs)
        if tuple(inputs.shape[1:]) != self.input_shape:
            raise UserError(f"the proof is about inputs of shape {self.input_shape}, got {tuple(inputs.shape[1:])}")
        if not inputs.isfinite().all():
            raise UserError("the inputs are not finite: no certificate is possible")
        logits = [self.net(self._laid_out(chunk)).double() for chunk in inputs.split(AT_ONCE)]
        norms = [chunk.flatten(1).double().norm(dim=1) for chunk in inputs.split(AT_ONCE)]
        empty = torch.zeros(0, len(self.pairwise), dtype=torch.float64, device=inputs.device)
        return Certificate(
            self.bound, self.pairwise, torch.cat([empty, *logits]), torch.cat([empty[:, 0], *norms]), self.error
        )

    def _laid_out(self, inputs: Tensor) -> Tensor:
        """In row-major memory of their own: in another a network may copy less, and write to what others read."""
        return inputs.to(self.dtype).clone(memory_format=torch.contiguous_format)

    def require_of(self, net: nn.Module, inputs: Tensor) -> None:
        """Refuse to speak of another network, or of weights that have changed since: it would be tried in vain."""
        own, proven = net(inputs[:2]).double(), self(inputs[:2]).logits
        if own.shape != proven.shape or not torch.allclose(own, proven, rtol=1e-3, atol=1e-3 * float(own.abs().max())):
            raise UserError("the proof is of another network, or its weights have changed since: prove it anew")

    def _require_arithmetic(self, inputs: Tensor) -> None:
        """Refuse whatever would compute otherwise than the proof allows for."""
        if any(torch.is_autocast_enabled(kind) for kind in ("cpu", "cuda")):
            raise UserError("autocast computes otherwise than what is certified: leave it first")
        if self.dtype == torch.float32 and inputs.dtype != torch.float32:
            raise UserError(f"a proof about float32 takes float32 inputs, got {inputs.dtype}: rounding them moves them")
        tf32 = torch.backends.cudnn.allow_tf32 or torch.backends.cuda.matmul.allow_tf32
        if self.dtype == torch.float32 and inputs.is_cuda and tf32:
            raise UserError(
                "TF32 is no float32: set torch.backends.cudnn.allow_tf32 and .cuda.matmul.allow_tf32 to False"
            )


@torch.no_grad()
def prove(
    net: nn.Module,
    input_shape: Sequence[int],
    *,
    dtype: torch.dtype = torch.float64,
    even_unconstrained: bool = False,
) -> Proof:
    """Certify a network, from its weights as they are; `certify` does so and certifies inputs at once.

    Args:
        net: The network, in any mode; it is certified in evaluation, and left in the mode that it came in.
        input_shape: (C, H, W) or (F,).
        dtype: The arithmetic that answers. In float64 the network with these very weights is off by some 1e-10, which
            costs no radius. In float32 the same proof holds for a float32 `net` itself, at the price of what float32
            may do in the worst case: little for small MLPs, most of the radius for convolutional networks.
        even_unconstrained: Compose a bound also where no layer carries a constant, as in an exported network or one of
            other libraries' layers. By default nothing is proven about such a network: a product of ordinary layers'
            norms is so large that its radii say nothing.

    Returns:
        The proof. It holds until the weights change.

    Example:
        >>> import lipscale, torch
        >>> from lipscale.certificates import prove
        >>> proof = prove(lipscale.models.mlp(3, 4, 8), (4,))
        >>> proof(torch.rand(5, 4)).radius().shape
        torch.Size([5])
    """
    if dtype not in (torch.float32, torch.float64):
        raise UserError(f"expected torch.float32 or torch.float64, got {dtype}")
    shape = tuple(input_shape)
    with evaluation_mode(net):
        is_certified = even_unconstrained or is_constrained(net)
        if is_certified:
            require_faithful(net)
        answering = copy.deepcopy(net).to(dtype)
        if dtype == torch.float64:
            with suppress(UserError):  # with the very weights in use where it can be exported, else its own copy
                answering = plain_copy(net).eval().double()
        like = next(chain(answering.parameters(), answering.buffers()), torch.zeros((), dtype=dtype))
        if not is_certified:
            with batch_means(answering):
                classes = answering(like.new_zeros(2, *shape)).shape[1]
            pairwise = torch.full((classes, classes), math.inf, dtype=torch.float64, device=like.device)
            return Proof(answering, shape, dtype, math.inf, pairwise.fill_diagonal_(0.0), Affine(0.0, 0.0))
        walk = Walk.over(answering, shape)
        bound = walk(answering)
        classes = walk.outputs(answering)[0]
        generic = torch.full((classes, classes), math.sqrt(2) * bound, dtype=torch.float64, device=like.device)
        error = forward_error(answering, walk, dtype)
        return Proof(answering, shape, dtype, bound, _with_head(answering, walk, generic), error)


def certify(
    net: nn.Module, inputs: Tensor, *, dtype: torch.dtype = torch.float64, even_unconstrained: bool = False
) -> Certificate:
    """Certify a network's answers: radii and confidences that no small change of an input can undo.

    Args:
        net: The network, in any mode; it is certified in evaluation, and left in the mode that it came in.
        inputs: (N, ...), each row certified by itself.
        dtype: The arithmetic that answers, see `lipscale.certificates.prove`.
        even_unconstrained: See there, too.

    Returns:
        The certificate: the network's logits in float64, and what is proven about them.

    Example:
        >>> import lipscale, torch
        >>> net = lipscale.models.mlp(3, 4, 8)
        >>> certificate = lipscale.certify(net, torch.rand(5, 4))
        >>> lower, upper = certificate.confidence(epsilon=0.1)
        >>> certificate.radius().shape, bool((lower < upper).all())
        (torch.Size([5]), True)
    """
    if not isinstance(inputs, Tensor) or inputs.ndim < 2:
        got = tuple(inputs.shape) if isinstance(inputs, Tensor) else type(inputs).__name__
        raise UserError(f"expected a tensor of inputs (N, ...), got {got}")
    return prove(net, inputs.shape[1:], dtype=dtype, even_unconstrained=even_unconstrained)(inputs)


def _with_head(net: nn.Module, walk: Walk, pairwise: Tensor) -> Tensor:
    """The tighter constants of pairs behind a linear head, where the network ends in one."""
    if not isinstance(net, nn.Sequential) or not is_plain_sequence(net) or len(net) == 0:
        return pairwise
    *features, head = net
    if type(head) not in (nn.Linear, OrthoLinear):
        return pairwise
    weight = cast(Tensor, head.weight).detach().double()
    rows = (weight.unsqueeze(1) - weight.unsqueeze(0)).norm(dim=2)  # ||w_k - w_j||
    return torch.minimum(pairwise, rows.to(pairwise.device) * math.prod(map(walk, features)) * (1 + 1e-11))
