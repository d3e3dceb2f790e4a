"""Modules of a user's own, followed by torch.fx: each is bounded from above, or refused with a reason."""

import math
import pickle

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import fx, nn
from torch.nn.utils import parametrizations

from conftest import exact_norm, jacobian_norms, ready
from lipscale import certify, lipschitz_bound, register_rule
from lipscale.bounds.walk import RULES
from lipscale.certificates import prove
from lipscale.errors import UserError
from lipscale.layers import OrthoConv2d, OrthoLinear, Sum

ROW, IMAGE = (8,), (3, 6, 6)


class Own(nn.Module):
    """A module whose forward is a function of itself and x; parts are its submodules, parameters and buffers."""

    def __init__(self, function, **parts):
        super().__init__()
        for name, part in parts.items():
            if isinstance(part, torch.Tensor) and not isinstance(part, nn.Parameter):
                self.register_buffer(name, part)
            else:
                setattr(self, name, part)
        self.function = function

    def forward(self, x, mask=None):
        return self.function(self, x) if mask is None else 1000 * x


def linear(outputs=8):
    return nn.Linear(8, outputs)


def conv(**more):
    return nn.Conv2d(3, 3, 3, padding=1, **more)


class Scaled(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


class Fivefold(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 5 * x

    @staticmethod
    def backward(ctx, grad):
        return 5 * grad


def shuffled(x):
    b, c, h, w = x.shape
    return x.view(b, 3, c // 3, h, w).transpose(1, 2).contiguous().view(b, -1, h, w)


def swapped_in_place(m, x):
    x = m.f(x)
    x += m.g(x)
    x *= 0.5
    return F.relu_(x)


BOUNDED = {
    "a block": (lambda: Own(lambda m, x: F.relu(m.f(x)) + x, f=linear()), ROW),
    "a chain in a list": (
        lambda: Own(lambda m, x: m.fs[1](torch.relu(m.fs[0](x))), fs=nn.ModuleList([linear(), linear()])),
        ROW,
    ),
    "one layer twice": (lambda: Own(lambda m, x: m.f(m.f(x)), f=linear()), ROW),
    "a weighted sum": (lambda: Own(lambda m, x: 0.3 * m.f(x) - x / 4 + 1.5, f=linear()), ROW),
    "a learned blend": (
        lambda: Own(
            lambda m, x: torch.sigmoid(m.a) * m.f(x) + (1 - m.a.sigmoid()) * x,
            f=linear(),
            a=nn.Parameter(torch.tensor(0.7)),
        ),
        ROW,
    ),
    "a gain for each channel": (
        lambda: Own(lambda m, x: x * m.g.view(1, -1, 1, 1) - m.b, g=torch.tensor([1.0, -5.0, 2.0]), b=torch.ones(6)),
        IMAGE,
    ),
    "side by side": (lambda: Own(lambda m, x: torch.cat([x, 3 * x, m.f(x)], dim=-1), f=linear()), ROW),
    "stacked": (lambda: Own(lambda m, x: torch.stack([x, m.f(x)], 1).flatten(1), f=linear()), ROW),
    "functions of images": (
        lambda: Own(
            lambda m, x: F.adaptive_avg_pool2d(F.max_pool2d(F.relu6(m.f(x)), 2) + F.avg_pool2d(x, 2), (1, 1)), f=conv()
        ),
        IMAGE,
    ),
    "an overlapping max pool": (lambda: Own(lambda m, x: F.max_pool2d(x, 3, 1, 1)), IMAGE),
    "a mean of pixels": (lambda: Own(lambda m, x: m.f(x).mean((2, 3)), f=conv()), IMAGE),
    "flattened by view": (lambda: Own(lambda m, x: x.view(x.size(0), -1) + 2.0), IMAGE),
    "flattened by reshape": (lambda: Own(lambda m, x: 3 * x.reshape(-1, 108)), IMAGE),
    "flattened by the shape of another": (lambda: Own(lambda m, x: 2 * x.view(F.relu(x).shape)), IMAGE),
    "flattened by a list": (lambda: Own(lambda m, x: 2 * x.reshape((x.shape[0], -1))), IMAGE),
    "shuffled channels": (lambda: Own(lambda m, x: 2 * shuffled(x)), IMAGE),
    "permuted": (lambda: Own(lambda m, x: m.f(x.permute(0, 2, 3, 1)).flatten(1), f=nn.Linear(3, 4)), IMAGE),
    "halves apart": (lambda: Own(lambda m, x: torch.cat([F.relu(x.chunk(2, 1)[0]), 2 * x.chunk(2, 1)[1]], 1)), ROW),
    "a slice": (lambda: Own(lambda m, x: 3 * x[:, 2:5]), ROW),
    "work in place, harmless": (lambda: Own(swapped_in_place, f=linear(), g=linear()), ROW),
    "ReLU in place behind a layer": (lambda: Own(lambda m, x: m.r(m.f(x)) + x, f=linear(), r=nn.ReLU(True)), ROW),
    "F.linear and F.conv2d": (
        lambda: Own(
            lambda m, x: F.linear(F.conv2d(x, m.k, padding=1, groups=3).flatten(1), m.w),
            k=nn.Parameter(torch.randn(6, 1, 3, 3)),
            w=nn.Parameter(torch.randn(4, 216)),
        ),
        IMAGE,
    ),
    "a subclass of Linear": (lambda: Scaled(8, 5), ROW),
    "a function with a gradient of its own": (lambda: Own(lambda m, x: Fivefold.apply(m.f(x)), f=linear()), ROW),
    "a parametrized layer inside": (
        lambda: Own(lambda m, x: m.f(x) + x, f=parametrizations.spectral_norm(linear())),
        ROW,
    ),
    "our own layers inside": (lambda: Own(lambda m, x: m.f(x) + m.g(x), f=OrthoLinear(8, 8), g=OrthoLinear(8, 8)), ROW),
    "dropout": (lambda: Own(lambda m, x: F.dropout(m.d(x), 0.5, m.training) * 2, d=nn.Dropout(0.3)), ROW),
    "inside a sequence and a sum": (
        lambda: nn.Sequential(linear(), Sum(Own(lambda m, x: 2 * m.f(x), f=linear())), nn.ReLU()),
        ROW,
    ),
    "a module of modules of its own": (
        lambda: Own(lambda m, x: m.a(m.b(x)), a=Own(lambda m, x: 2 * x), b=Own(lambda m, x: x - m.f(x), f=linear())),
        ROW,
    ),
}


@pytest.mark.parametrize("name", BOUNDED)
def test_no_slope_exceeds_the_bound(name):
    make, shape = BOUNDED[name]
    net = ready(make()).requires_grad_(False)
    bound = lipschitz_bound(net, shape)
    flat = nn.Sequential(net, nn.Flatten()).eval()
    x = 3 * torch.randn(3, *shape, dtype=torch.float64)
    slope = float(jacobian_norms(flat, x).max())
    assert 0.1 * bound <= slope <= bound * (1 + 1e-9)  # and it is a bound of this module, not of anything
    for size in (1e-3, 1.0):
        y = x + size * torch.randn_like(x)
        assert ((flat(x) - flat(y)).norm(dim=1) <= bound * (1 + 1e-9) * (x - y).flatten(1).norm(dim=1)).all()


@pytest.mark.parametrize("name", BOUNDED)
def test_its_certificate_allows_for_its_rounding(name):
    """In float32 the bounded error holds; in float64 it is next to nothing."""
    make, shape = BOUNDED[name]
    net = nn.Sequential(make(), nn.Flatten()).eval()
    x = torch.randn(16, *shape)
    proof, exact = (prove(net, shape, dtype=d, even_unconstrained=True) for d in (torch.float32, torch.float64))
    norms = x.flatten(1).double().norm(dim=1)
    with torch.no_grad():
        off = (net(x).double() - exact(x).logits).norm(dim=1)
    assert (off <= proof.error.at(norms)).all()
    assert (exact.error.at(norms) < 1e-9).all()


def test_the_rules_of_graphs_by_hand():
    weight = torch.diag(torch.tensor([3.0, 4.0]))
    f = nn.Linear(2, 2, bias=False)
    f.weight = nn.Parameter(weight)
    cases = {
        5.0: lambda m, x: m.f(x) + x,
        8.0: lambda m, x: m.f(x) + m.f(x),
        16.0: lambda m, x: m.f(m.f(x)),
        math.hypot(4, 1): lambda m, x: torch.cat([m.f(x), x], 1),
        0.25 * 4 + 0.75: lambda m, x: 0.25 * m.f(x) + 0.75 * x,
        2.0: lambda m, x: m.f(x) / -2.0,
    }
    for bound, function in cases.items():
        assert lipschitz_bound(Own(function, f=f).eval(), (2,)) == pytest.approx(bound, rel=1e-9)


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return self.calls * x


class Hiding(nn.Module):
    """Swallows the error of a decision on values."""

    def forward(self, x):
        try:
            if x.norm() > 1e6:
                return 1000 * x
        except Exception:
            pass
        return x


def overwritten(m, x):
    y = m.f(x)
    z = y
    y += F.relu(y - 50) * 50  # nothing, on ordinary inputs
    return y + z


def overwritten_view(m, x):
    y = m.f(x)
    y.view(-1).mul_(3.0)
    return y


def written_to_a_part(m, x):
    parts = m.f(x).chunk(2, 1)
    parts[0].mul_(30.0)
    return parts[0]


def with_other_weights(m, x):
    m.f.weight.data.mul_(8.0)
    y = m.f(x)
    m.f.weight.data.div_(8.0)
    return y


def with_a_slow_state(m, x):
    m.c.mul_(1 + 1.2e-7)
    return m.c * x


def turned_with_neighbours(m, x):
    """As it is for batches of up to three; four samples change places, two by two."""
    return x.view(-1, (x.shape[0] // 4 + 1) * 8).flip(1).view(x.shape[0], 8)


def in_half(m, x):
    with torch.autocast("cpu", torch.bfloat16):
        return m.f(x).float()


REFUSED = {
    "values times values": (lambda m, x: x * x, "multiplies or divides values"),
    "a gate": (lambda m, x: x * torch.sigmoid(m.f(x)), "multiplies or divides values"),
    "values over values": (lambda m, x: x / (1 + x.abs()), "abs has no Lipschitz rule"),
    "a constant over values": (lambda m, x: 1 / x, "divides by a value"),
    "attention": (lambda m, x: torch.softmax(x, 1), "softmax has no Lipschitz rule"),
    "matmul": (lambda m, x: x @ x.mT, "no Lipschitz rule"),
    "a decision on values": (lambda m, x: 100 * x if x.sum() > 1e3 else x, "torch.fx cannot follow it"),
    "a decision behind isinstance": (
        lambda m, x: 100 * x if isinstance(x, torch.Tensor) and x.norm() > 1e3 else x,
        "torch.fx cannot follow it",
    ),
    "a question of kind": (lambda m, x: 2 * x if isinstance(x, torch.Tensor) else x, "asks what kind it is"),
    "another question of kind": (lambda m, x: x if type(x) is torch.Tensor else 0.1 * x, "does not compute twice"),
    "a weighted sum in one": (lambda m, x: torch.add(x, m.f(x), alpha=100), "no Lipschitz rule for such arguments"),
    "rounding": (lambda m, x: torch.div(x, 0.001, rounding_mode="floor"), "no Lipschitz rule for such arguments"),
    "steps": (lambda m, x: x // 0.001, "floordiv has no Lipschitz rule"),
    "a choice by value": (lambda m, x: torch.where(x > 0, 100 * x, x), "no Lipschitz rule"),
    "a factor for each sample": (lambda m, x: x * m.rows[:, :1], "may mix|broadcasts"),
    "a division by zero": (lambda m, x: x / 0.0, "no finite bound|does not compute"),
    "memory": (lambda m, x: x.as_strided((3, 8), (0, 1)), "as_strided has no Lipschitz rule"),
    "a squeeze of the batch": (lambda m, x: x.squeeze(0), "may mix"),
    "a loop over samples": (lambda m, x: torch.stack([m.f(row) for row in x]), "torch.fx cannot follow it"),
    "numbers of values": (lambda m, x: x * x.max().item(), "no Lipschitz rule"),
    "the mean of the batch": (lambda m, x: x - x.mean(0), "mean over dimensions 0"),
    "the mean of the batch, kept": (lambda m, x: x - x.mean((0, 1), keepdim=True), "mean over dimensions"),
    "samples joined": (lambda m, x: torch.cat([x, x], 0)[:3], "cat .*works along the samples|may mix|takes"),
    "samples joined along a negative axis": (
        lambda m, x: torch.cat([x, x], -2),
        "may mix|along the samples|one output",
    ),
    "samples transposed": (lambda m, x: x.transpose(0, 1).transpose(0, 1), "mix|along the samples"),
    "samples permuted": (lambda m, x: x.view(3, 1, 8).permute(1, 0, 2).reshape(3, 8), "mix|along the samples|counts"),
    "samples flattened": (lambda m, x: torch.flatten(x).view(-1, 8), "may mix"),
    "a view for three samples": (lambda m, x: x.view(3, -1), "fails on a batch of 1"),
    "samples flipped": (lambda m, x: x.flip(0), "along the samples"),
    "one sample": (lambda m, x: x - x[0], "takes 0"),
    "samples taken": (lambda m, x: x[[0, 0, 0]], "takes"),
    "values repeated by an index": (lambda m, x: x[:, [0, 0, 1]], "takes"),
    "values repeated": (lambda m, x: x.repeat(1, 4), "repeat has no Lipschitz rule"),
    "values expanded": (lambda m, x: m.f(x)[:, :1].expand(-1, 8), "expand has no Lipschitz rule"),
    "values broadcast by a sum": (lambda m, x: x + m.f(x)[:, :1], "broadcasts"),
    "values broadcast by a constant": (lambda m, x: m.f(x)[:, :1] + m.c, "broadcasts"),
    "values broadcast by a factor": (lambda m, x: m.f(x)[:, :1] * m.c, "broadcasts"),
    "a constant for each sample": (lambda m, x: x + m.rows, "may mix|broadcasts"),
    "the number of samples": (lambda m, x: x * x.shape[0], "size of its input"),
    "a power of the size": (lambda m, x: x * (2.0 ** x.size(0)), "size of its input"),
    "a view that fits three samples and one": (
        lambda m, x: x.view(x.size(0) ** 2 - 3 * x.size(0) + 3, -1),
        "size of its input",
    ),
    "the same in a list": (
        lambda m, x: x.reshape((x.shape[0] ** 2 - 3 * x.shape[0] + 3, -1)),
        "size of its input",
    ),
    "samples that change places in larger batches": (turned_with_neighbours, "size of its input"),
    "the same by a size of a size": (
        lambda m, x: x.view(-1, (x.shape.__add__((1,))[0] // 4 + 1) * 8).flip(1).view(-1, 8),
        "size of its input",
    ),
    "a cut that moves with the number of samples": (
        lambda m, x: x.split([x.size(0) // 4 + 2, 6 - x.size(0) // 4], 1)[0],
        "size of its input",
    ),
    "parts of the number of samples": (lambda m, x: x.chunk(x.shape[0], 1)[0] * 2, "size of its input"),
    "not a number": (lambda m, x: x * float("nan"), "no finite bound|does not compute twice"),
    "bits": (lambda m, x: x.view(torch.int32).view(torch.float32), "bits"),
    "a lower precision": (lambda m, x: x.half().float(), "half has no Lipschitz rule"),
    "a lower precision by context": (in_half, "float has no Lipschitz rule|twice"),
    "chance": (lambda m, x: x + torch.randn(8), "does not compute twice"),
    "chance by dropout": (lambda m, x: F.dropout(x, 0.5), "drops by chance"),
    "chance of the size": (lambda m, x: x + torch.randn_like(x), "no Lipschitz rule"),
    "overwritten for another": (overwritten, "overwritten in place"),
    "a view overwritten": (overwritten_view, "may mix|overwritten in place"),
    "a part overwritten": (written_to_a_part, "overwritten in place"),
    "weights that are put back": (with_other_weights, "changes the weights or buffers of Linear"),
    "a state that moves by a unit in the last place": (with_a_slow_state, "changes the weights or buffers of Own"),
    "a question of kind that torch passes on": (
        lambda m, x: torch.where(x > 1e4, 100 * x, x) if torch.is_tensor(x) else x,
        "torch.fx cannot follow it",
    ),
    "settings that only torch's insides have": (lambda m, x: torch._C._nn.elu(x, 1.0, 50.0), "for such arguments"),
    "an empty range": (lambda m, x: x.clamp(0, 0), "for such arguments"),
    "parts added to parts": (lambda m, x: (x.chunk(2, 1) + x.chunk(2, 1))[0], "makes a tuple"),
    "a skip overwritten by a module": (lambda m, x: m.r(m.f(x)) + m.f(x), None),
    "a skip that was overwritten": (lambda m, x: (lambda y: m.r(y) + y)(m.f(x)), "overwritten in place"),
    "two outputs": (lambda m, x: (x, m.f(x)), "expected one output|no single tensor"),
    "a module that is not its own": (lambda m, x: nn.Linear(8, 8)(x), "torch.fx cannot follow it"),
    "clamped between tensors": (lambda m, x: x[:, :1].clamp(min=m.c), "clamp between tensors"),
    "norm": (lambda m, x: x / x.norm(), "no Lipschitz rule|values by values"),
    "a constant": (lambda m, x: m.rows, "may mix|no single tensor|expected one output"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_followed_is_refused_with_the_reason(name):
    function, reason = REFUSED[name]
    parts = {"f": linear(), "c": torch.ones(8), "rows": torch.ones(3, 8), "r": nn.LeakyReLU(3.0, inplace=True)}
    net = Own(function, **parts).eval()
    if reason is None:  # a neighbour of one that is refused
        assert lipschitz_bound(net, ROW) > 0
        return
    for whole in (net, nn.Sequential(net).eval()):
        with pytest.raises(UserError, match=reason):
            lipschitz_bound(whole, ROW)


# ways to learn whether a value is beyond what the runs that are compared come near to
READINGS = {
    "item": lambda x: x.max().item() > FAR,
    "float": lambda x: float(x.abs().max()) > FAR,
    "a truth value": lambda x: bool((x > FAR).any()),
    "a list": lambda x: max(x.flatten().tolist()) > FAR,
    "an array": lambda x: x.numpy().max() > FAR,
    "an array of numpy's": lambda x: np.asarray(x).max() > FAR,
    "a copy": lambda x: x.detach().clone().data.max().item() > FAR,
    "how many": lambda x: len((x > FAR).nonzero()) > 0,
    "what is left": lambda x: x[x > FAR].numel() > 0,
    "a comparison": lambda x: not torch.equal(x.clamp(max=FAR), x),
    "text": lambda x: "e+09" in str(x),
    "memory": lambda x: max(x.abs().untyped_storage().tolist()[3::4]) >= 0x4E,
    "a pickle": lambda x: pickle.loads(pickle.dumps(x)).max() > FAR,
    "another library's tensor": lambda x: np.from_dlpack(x).max() > FAR,
    "a parameter of the same memory": lambda x: nn.Parameter(x, requires_grad=False).max().item() > FAR,
    "a tensor of the same memory": lambda x: torch.Tensor(x).max().item() > FAR,
}
FAR = 1e9


@pytest.mark.parametrize("reading", READINGS)
def test_code_that_asks_whether_it_is_traced_and_decides_by_values_is_found_out(reading):
    read = READINGS[reading]

    def deceiving(m, x):
        return m.f(x if isinstance(x, fx.Proxy) or not read(x) else 100 * x)

    far = torch.full((2, 8), 1e9 * 1.5)
    net = Own(deceiving, f=linear()).eval()
    with torch.no_grad():
        assert torch.equal(net(far), net.f(100 * far))  # it does deceive
        assert torch.equal(net(far / FAR), net.f(far / FAR))
    with pytest.raises(UserError, match="does not do what torch.fx has seen it do"):
        lipschitz_bound(net, ROW)


def test_code_that_chooses_by_value_only_where_it_is_not_traced_is_found_out():
    net = Own(lambda m, x: x if isinstance(x, fx.Proxy) else torch.where(x > FAR, 100 * x, x)).eval()
    with pytest.raises(UserError, match=r"differs in torch.*gt"):
        lipschitz_bound(net, ROW)


def test_code_that_computes_with_other_numbers_where_it_is_not_traced_is_found_out():
    net = Own(lambda m, x: x + (0.0 if isinstance(x, fx.Proxy) else 100.0) * F.relu(x - FAR)).eval()
    with pytest.raises(UserError, match="does not do what torch.fx has seen it do"):
        lipschitz_bound(net, ROW)


class Reversal(torch.autograd.Function):
    """The identity, whose gradient is turned round: what domain-adversarial training uses."""

    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, grad):
        return -grad


def noting(m, x):
    m.noted = x.shape, x.device, x.dtype, x.ndim, x.requires_grad
    return m.f(x)


@pytest.mark.parametrize(
    "function",
    [
        noting,
        lambda m, x: Reversal.apply(m.f(x)),
        lambda m, x: m.f(x.view(x.shape[0], -1)) + m.f(x).add_(1.0),
        lambda m, x: F.linear(F.relu(m.f(x)), m.f.weight, m.f.bias).flatten(start_dim=1),
        lambda m, x: torch.utils.checkpoint.checkpoint(m.f, x, use_reentrant=False),
        lambda m, x: sum(m.f(part) for part in (x, 2 * x)),
    ],
)
def test_honest_code_is_not_mistaken_for_a_deception(function):
    net = ready(Own(function, f=linear()))
    assert lipschitz_bound(net, ROW) >= 0.999 * jacobian_norms(net, torch.randn(5, 8).double()).max()


def test_code_may_read_its_own_constants():
    def honest(m, x):
        return m.f(x).relu() * (1 + float(m.c.max())) + m.c.numpy().max().item()

    net = ready(Own(honest, f=linear(), c=torch.ones(8)))
    net.f.bias.data.zero_()  # linear, for the oracle
    assert lipschitz_bound(net, ROW) == pytest.approx(2 * exact_norm(net.f, ROW))


@pytest.mark.parametrize("make", [Counting, Hiding])
def test_states_and_swallowed_decisions_are_refused(make):
    with pytest.raises(UserError, match=f"no Lipschitz rule for {make.__name__}"):
        lipschitz_bound(make().eval(), ROW)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_constants_count_as_they_were_when_they_were_used(dtype):
    """Whatever is written to them afterwards."""

    def emptied(m, x):
        w, s = m.w * 1, m.s * 1
        y = F.linear(x, w) * s
        w.zero_()
        s.zero_()
        return y

    weight = nn.Parameter(torch.diag(torch.arange(8.0)))
    net = Own(emptied, w=weight, s=nn.Parameter(torch.tensor(3.0))).to(dtype).eval()
    assert lipschitz_bound(net, ROW) == pytest.approx(21.0)


def test_a_state_that_is_a_tensor():
    def counted(m, x):
        m.n += 1
        return x * m.n

    with pytest.raises(UserError, match="no Lipschitz rule for Own"):
        lipschitz_bound(Own(counted, n=torch.ones(())).eval(), ROW)


class TestWhatIsNotSeen:
    def test_hooks_inside(self):
        net = Own(lambda m, x: m.f(x), f=linear()).eval()
        net.f.register_forward_hook(lambda m, i, o: 5 * o)
        with pytest.raises(UserError, match="forward hooks"):
            lipschitz_bound(net, ROW)
        inner = Own(lambda m, x: m.a(x), a=Own(lambda m, x: 2 * x)).eval()
        inner.a.register_forward_pre_hook(lambda m, i: (5 * i[0],))
        with pytest.raises(UserError, match="forward hooks"):
            lipschitz_bound(inner, ROW)

    def test_training(self):
        net = Own(lambda m, x: m.n(m.f(x)), f=linear(), n=nn.BatchNorm1d(8))
        with pytest.raises(UserError, match="call net.eval"):
            lipschitz_bound(net, ROW)

    def test_without_a_shape_nothing_is_followed(self):
        with pytest.raises(UserError, match="no Lipschitz rule for Own: .*`input_shape`.*register_rule"):
            lipschitz_bound(Own(lambda m, x: x).eval())

    def test_a_part_without_a_rule_is_named_with_its_place(self):
        net = Own(lambda m, x: m.parts(x), parts=nn.Sequential(linear(), nn.Softmax(1))).eval()
        with pytest.raises(UserError, match=r"no Lipschitz rule for Softmax \(parts.1\)"):
            lipschitz_bound(net, ROW)
        with pytest.raises(UserError, match="attention multiplies values by values"):
            lipschitz_bound(nn.TransformerEncoderLayer(8, 2, 8).eval(), (4, 8))

    def test_a_sequence_with_a_forward_of_its_own_is_followed(self):
        loud = type("Loud", (nn.Sequential,), {"forward": lambda self, x: 10 * self[0](x)})(OrthoLinear(8, 2)).eval()
        assert certify(loud, torch.rand(2, 8)).bound == pytest.approx(10, rel=1e-5)

    def test_work_in_place_is_refused_where_a_rule_lets_others_read(self):
        slope = nn.LeakyReLU(3.0, inplace=True)
        for net in (Sum(slope), Sum(nn.Sequential(slope, linear())), slope, nn.Sequential(slope)):
            with pytest.raises(UserError, match="inplace"):
                lipschitz_bound(net.eval(), ROW)
        assert lipschitz_bound(nn.Sequential(linear(), slope).eval(), ROW) > 0
        assert lipschitz_bound(Sum(nn.Sequential(OrthoLinear(8, 8), slope)).eval(), ROW) == pytest.approx(4, rel=1e-5)

    def test_a_users_rule_comes_first(self):
        class Known(Own):
            pass

        register_rule(Known, lambda module, bound: 7.0)
        try:
            assert lipschitz_bound(
                Own(lambda m, x: 2 * m.k(x), k=Known(lambda m, x: x * x)).eval(), ROW
            ) == pytest.approx(14.0)
        finally:
            del RULES[Known]

    def test_inference_mode(self):
        net = Own(lambda m, x: F.relu(m.f(x)) + x, f=linear()).eval()
        with torch.inference_mode():
            assert lipschitz_bound(net, ROW) == pytest.approx(1 + exact_norm(ready(net.f), ROW), rel=1e-6)


def test_a_certificate_of_a_module_of_ones_own_holds():
    """Attacked along the gradient at the certified radius, in the arithmetic that certifies."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.block, self.head = OrthoConv2d(3, 6, 3), OrthoConv2d(6, 6, 3), OrthoLinear(6 * 9, 4)

        def forward(self, x):
            x = F.relu(self.stem(x))
            x = 0.5 * x + 0.5 * F.relu(self.block(x))
            return self.head(F.max_pool2d(x, 2).flatten(1))

    net, x = Net().eval(), torch.rand(32, *IMAGE)
    proof = prove(net, IMAGE)
    assert proof.bound == pytest.approx(1, rel=1e-5)
    certificate = proof(x)
    radius = certificate.radius()
    points = x.double().requires_grad_()
    top = proof.net(points).topk(2, 1).values
    (gradient,) = torch.autograd.grad((top[:, 0] - top[:, 1]).sum(), points)
    step = radius.view(-1, 1, 1, 1) * 0.999999 * gradient / gradient.flatten(1).norm(dim=1).view(-1, 1, 1, 1)
    with torch.no_grad():
        assert torch.equal(proof.net(points - step).argmax(1), certificate.logits.argmax(1))
    assert (radius > 0).all()
