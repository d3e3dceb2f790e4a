"""A table of modules, torch's and the peers': each is refused, or no measured slope exceeds its bound."""

import math
import warnings

import deel.torchlip as torchlip
import orthogonium.layers as orthogonium
import pytest
import torch
from deel.torchlip.modules.unconstrained import PadConv1d, PadConv2d
from orthogonium.layers.conv.SLL.sll_layer import SDPBasedLipschitzDense
from orthogonium.layers.custom_activations import SoftHuber
from orthogonium.layers.residual import (
    AdditiveResidual,
    ConcatResidual,
    L2NormResidual,
    PrescaledAdditiveResidual,
)
from torch import nn

from conftest import jacobian_norms
from lipscale import layers, lipschitz_bound
from lipscale.errors import UserError

ROW, IMAGE, LINE = (8,), (4, 6, 6), (4, 8)


class Twice(nn.Module):
    """A module of a user's own."""

    def forward(self, x):
        return 2 * x


# name -> (how to make it, the shape of an input): these have a bound
BOUNDED = {
    # activations
    **{
        f"{kind.__name__} on {shape}": (kind, shape)
        for kind in (
            *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.PReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Sigmoid, nn.Tanh, nn.Hardtanh),
            *(nn.Softsign, nn.Softshrink, nn.LogSigmoid, nn.Identity, nn.Dropout, nn.AlphaDropout, nn.Flatten),
            *(
                layers.GroupSort2,
                layers.HalfAbs,
                torchlip.MaxMin,
                torchlip.GroupSort,
                torchlip.GroupSort2,
                torchlip.FullSort,
            ),
            *(orthogonium.Abs, orthogonium.MaxMin),
        )
        for shape in (ROW, IMAGE)
    },
    "a user's own": (Twice, ROW),
    "Hardswish": (nn.Hardswish, ROW),
    "LeakyReLU(-3)": (lambda: nn.LeakyReLU(-3.0), ROW),
    "ELU(-2)": (lambda: nn.ELU(-2.0), ROW),
    "GELU(tanh)": (lambda: nn.GELU("tanh"), ROW),
    "PReLU by channel": (lambda: nn.PReLU(4, init=-1.5), IMAGE),
    "Hardtanh(-3, 2)": (lambda: nn.Hardtanh(-3.0, 2.0), ROW),
    "Dropout1d": (nn.Dropout1d, LINE),
    "Dropout2d": (nn.Dropout2d, IMAGE),
    "torchlip GroupSort(4)": (lambda: torchlip.GroupSort(4), IMAGE),
    "torchlip GroupSort, k = 3": (lambda: torchlip.GroupSort(2, k_coef_lip=3.0), ROW),
    "torchlip MaxMin(dim=2)": (lambda: torchlip.MaxMin(2), IMAGE),
    "torchlip MaxMin(dim=-1)": (lambda: torchlip.MaxMin(-1), IMAGE),
    "orthogonium MaxMin(-1)": (lambda: orthogonium.MaxMin(-1), IMAGE),
    "Patches(2)": (lambda: layers.Patches(2), IMAGE),
    "MirrorAverage": (lambda: layers.MirrorAverage(nn.Conv2d(4, 2, 3)), IMAGE),
    "EvenOdd": (lambda: layers.EvenOdd(2, nn.Conv2d(16, 3, 3, padding=1), nn.LeakyReLU(-2.0)), IMAGE),
    "EvenOddMap": (lambda: layers.EvenOddMap(nn.Conv2d(2, 3, 3), nn.Conv2d(2, 1, 3)), IMAGE),
    "EvenOddActivation": (lambda: layers.EvenOddActivation(layers.GroupSort2()), IMAGE),
    "EvenOddPatches": (lambda: layers.EvenOddPatches(2, 3), IMAGE),
    "Even": (lambda: layers.Even(), IMAGE),
    "BatchLast": (lambda: layers.BatchLast(), IMAGE),
    # linear maps
    "Linear": (lambda: nn.Linear(8, 5), ROW),
    "Linear along a line": (lambda: nn.Linear(8, 5), LINE),
    "OrthoLinear": (lambda: layers.OrthoLinear(8, 5), ROW),
    "torchlip SpectralLinear": (lambda: torchlip.SpectralLinear(8, 5), ROW),
    "torchlip FrobeniusLinear": (lambda: torchlip.FrobeniusLinear(8, 5), ROW),
    "orthogonium OrthoLinear": (lambda: orthogonium.OrthoLinear(8, 5), ROW),
    "orthogonium UnitNormLinear": (lambda: orthogonium.UnitNormLinear(8, 5), ROW),
    "weight norm": (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(8, 5)), ROW),
    "spectral norm": (lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(8, 5)), ROW),
    "orthogonal": (lambda: nn.utils.parametrizations.orthogonal(nn.Linear(8, 5)), ROW),
    # convolutions
    **{
        f"Conv2d {mode}, stride {stride}": (
            lambda mode=mode, stride=stride: nn.Conv2d(4, 6, 3, stride, 1, padding_mode=mode),
            IMAGE,
        )
        for mode in ("zeros", "circular", "reflect", "replicate")
        for stride in (1, 2)
    },
    **{
        f"Conv1d {mode}": (lambda mode=mode: nn.Conv1d(4, 6, 3, padding=1, padding_mode=mode), LINE)
        for mode in ("zeros", "circular", "reflect", "replicate")
    },
    "Conv2d grouped": (lambda: nn.Conv2d(4, 8, 3, groups=4), IMAGE),
    "Conv2d dilated": (lambda: nn.Conv2d(4, 4, 3, dilation=2), IMAGE),
    "Conv2d same": (lambda: nn.Conv2d(4, 4, (3, 2), padding="same"), IMAGE),
    "ConvTranspose2d": (lambda: nn.ConvTranspose2d(4, 2, 3), IMAGE),
    "ConvTranspose2d, strided": (lambda: nn.ConvTranspose2d(4, 6, 3, 2, 1, 1, groups=2), IMAGE),
    "ConvTranspose2d, dilated": (lambda: nn.ConvTranspose2d(4, 2, (3, 2), (1, 2), dilation=2), IMAGE),
    "OrthoConvTranspose2d": (lambda: layers.OrthoConvTranspose2d(4, 6, 3, 2, 1, 1), IMAGE),
    "OrthoConv2d": (lambda: layers.OrthoConv2d(4, 6, 3), IMAGE),
    "OrthoConv2d, grouped and dilated": (lambda: layers.OrthoConv2d(4, 6, (3, 2), dilation=(1, 2), groups=2), IMAGE),
    "OrthoConv2d, same": (lambda: layers.OrthoConv2d(4, 6, 4, padding="same", padding_mode="circular"), IMAGE),
    "OrthoConv2d, strided": (lambda: layers.OrthoConv2d(4, 6, 3, stride=2), IMAGE),
    "OrthoConv2d, circular": (lambda: layers.OrthoConv2d(4, 6, 3, stride=2, padding_mode="circular"), IMAGE),
    "torchlip SpectralConv2d": (lambda: torchlip.SpectralConv2d(4, 6, 3, padding=1), IMAGE),
    "torchlip FrobeniusConv2d": (lambda: torchlip.FrobeniusConv2d(4, 6, 3, padding=1), IMAGE),
    "torchlip SpectralConv1d": (lambda: torchlip.SpectralConv1d(4, 6, 3, padding=1), LINE),
    "torchlip PadConv2d": (lambda: PadConv2d(4, 6, 3, padding=1, padding_mode="reflect"), IMAGE),
    "torchlip PadConv1d": (lambda: PadConv1d(4, 6, 3, padding=1, padding_mode="circular"), LINE),
    **{
        f"orthogonium AdaptiveOrthoConv2d, kernel {kernel}, stride {stride}, {mode}": (
            lambda kernel=kernel, stride=stride, mode=mode: orthogonium.AdaptiveOrthoConv2d(
                4, 8, kernel, stride=stride, padding=kernel // 2, padding_mode=mode
            ),
            IMAGE,
        )
        for kernel, stride in ((3, 1), (3, 2), (1, 1), (2, 2))
        for mode in ("zeros", "circular")
    },
    # normalisation
    "LayerNorm": (lambda: nn.LayerNorm(8), ROW),
    "LayerNorm of images": (lambda: nn.LayerNorm((6, 6), eps=0.1), IMAGE),
    "RMSNorm": (lambda: nn.RMSNorm(8, eps=0.1), ROW),
    "GroupNorm": (lambda: nn.GroupNorm(2, 4), IMAGE),
    "InstanceNorm2d": (lambda: nn.InstanceNorm2d(4, affine=True), IMAGE),
    "InstanceNorm2d, running": (lambda: nn.InstanceNorm2d(4, track_running_stats=True), IMAGE),
    "ReLU in place behind a layer": (lambda: nn.Sequential(nn.Linear(8, 8), nn.ReLU(inplace=True)), ROW),
    "BatchNorm1d": (lambda: nn.BatchNorm1d(8), ROW),
    "BatchNorm1d along a line": (lambda: nn.BatchNorm1d(4), LINE),
    "BatchNorm2d": (lambda: nn.BatchNorm2d(4), IMAGE),
    "BatchNorm2d, not affine": (lambda: nn.BatchNorm2d(4, affine=False), IMAGE),
    "BatchCentering": (lambda: layers.BatchCentering(4), IMAGE),
    "Standardise": (lambda: layers.Standardise([0.5] * 4, [0.25, 1.0, 2.0, 0.5]), IMAGE),
    "Shift": (lambda: layers.Shift(torch.ones(4)), IMAGE),
    "Scale": (lambda: layers.Scale(-2.5), ROW),
    "torchlip BatchCentering": (lambda: torchlip.BatchCentering(4), IMAGE),
    "torchlip LayerCentering": (lambda: torchlip.LayerCentering(4), IMAGE),
    "torchlip LayerCentering, one feature": (lambda: torchlip.LayerCentering(), IMAGE),
    "torchlip LayerCentering, no bias": (lambda: torchlip.LayerCentering(4, dim=(1, 3), bias=False), IMAGE),
    "orthogonium BatchCentering2D": (lambda: orthogonium.BatchCentering2D(4), IMAGE),
    "orthogonium LayerCentering2D": (lambda: orthogonium.LayerCentering2D(4), IMAGE),
    # pooling, padding, moving about
    "MaxPool2d": (lambda: nn.MaxPool2d(3, 2, 1), IMAGE),
    "AvgPool2d": (lambda: nn.AvgPool2d(3, 2, 1), IMAGE),
    "AdaptiveAvgPool2d(1)": (lambda: nn.AdaptiveAvgPool2d(1), IMAGE),
    "AdaptiveAvgPool2d(4)": (lambda: nn.AdaptiveAvgPool2d(4), IMAGE),
    "L2NormPool2d": (layers.L2NormPool2d, IMAGE),
    "torchlip ScaledAvgPool2d": (lambda: torchlip.ScaledAvgPool2d(2), IMAGE),
    "torchlip ScaledAvgPool2d, a pair": (lambda: torchlip.ScaledAvgPool2d((2, 3)), IMAGE),
    "torchlip ScaledL2NormPool2d": (lambda: torchlip.ScaledL2NormPool2d(2), IMAGE),
    "torchlip ScaledAdaptiveAvgPool2d": (lambda: torchlip.ScaledAdaptiveAvgPool2d((1, 1)), IMAGE),
    "torchlip ScaledAdaptativeL2NormPool2d": (lambda: torchlip.ScaledAdaptativeL2NormPool2d((1, 1)), IMAGE),
    "CircularPad2d": (lambda: nn.CircularPad2d(2), IMAGE),
    "ReflectionPad2d": (lambda: nn.ReflectionPad2d((1, 2, 3, 0)), IMAGE),
    "ReplicationPad2d": (lambda: nn.ReplicationPad2d(2), IMAGE),
    "ZeroPad2d": (lambda: nn.ZeroPad2d((1, -1, 2, 0)), IMAGE),
    "PadToMultiple": (lambda: layers.PadToMultiple(4), IMAGE),
    "PixelUnshuffle": (lambda: nn.PixelUnshuffle(2), IMAGE),
    "PixelShuffle": (lambda: nn.PixelShuffle(2), IMAGE),
    "ChannelShuffle": (lambda: nn.ChannelShuffle(2), IMAGE),
    "Unflatten": (lambda: nn.Unflatten(1, (2, 4)), ROW),
    "torchlip InvertibleDownSampling": (lambda: torchlip.InvertibleDownSampling(2), IMAGE),
    "torchlip InvertibleUpSampling": (lambda: torchlip.InvertibleUpSampling(2), IMAGE),
    # paths
    "Sequential": (lambda: nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3)), ROW),
    "torchlip Sequential": (lambda: torchlip.Sequential(torchlip.SpectralLinear(8, 4), torchlip.GroupSort2()), ROW),
    "ConvexResidual": (lambda: layers.ConvexResidual(nn.Linear(8, 8)), ROW),
    "Sum": (lambda: layers.Sum(nn.Linear(8, 8)), ROW),
    "Concatenate": (lambda: layers.Concatenate(nn.Linear(8, 3), nn.ReLU()), ROW),
    "orthogonium AdditiveResidual": (lambda: AdditiveResidual(nn.Linear(8, 8)), ROW),
    "orthogonium PrescaledAdditiveResidual": (lambda: PrescaledAdditiveResidual(nn.Linear(8, 8)), ROW),
    "orthogonium ConcatResidual": (lambda: ConcatResidual(nn.Linear(4, 4)), ROW),
}

# these have none: they have no rule, mix samples, broadcast, or are set to do something that no rule covers
REFUSED = {
    # no rule
    **{
        kind.__name__: (kind, ROW)
        for kind in (
            *(nn.Softmax, nn.Softmin, nn.LogSoftmax, nn.Softmax2d, nn.Softplus, nn.Hardsigmoid, nn.Mish),
            *(nn.SELU, nn.CELU, nn.Tanhshrink, nn.Hardshrink, nn.GLU, nn.RReLU, nn.FeatureAlphaDropout),
            *(SoftHuber, torchlip.LPReLU, nn.Dropout3d),
        )
    },
    "Threshold": (lambda: nn.Threshold(0.1, 5.0), ROW),
    "LayerNorm over samples": (lambda: nn.LayerNorm((3, 8)), ROW),
    "RMSNorm without eps": (lambda: nn.RMSNorm(8), ROW),
    "InstanceNorm1d": (lambda: nn.InstanceNorm1d(4), LINE),
    "LocalResponseNorm": (lambda: nn.LocalResponseNorm(2), IMAGE),
    "CrossMapLRN2d": (lambda: nn.CrossMapLRN2d(2), IMAGE),
    "BatchNorm3d": (lambda: nn.BatchNorm3d(4), (4, 2, 2, 2)),
    "SyncBatchNorm": (lambda: nn.SyncBatchNorm(4), IMAGE),
    "Conv3d": (lambda: nn.Conv3d(1, 2, 1), (1, 2, 2, 2)),
    "ConvTranspose1d": (lambda: nn.ConvTranspose1d(4, 2, 3), LINE),
    "Bilinear": (lambda: nn.Bilinear(8, 8, 2), ROW),
    "Fold": (lambda: nn.Fold((4, 4), 2, stride=2), (8, 4)),
    "Unfold": (lambda: nn.Unfold(3), IMAGE),
    "Upsample": (lambda: nn.Upsample(scale_factor=2), IMAGE),
    "UpsamplingBilinear2d": (lambda: nn.UpsamplingBilinear2d(scale_factor=2), IMAGE),
    "UpsamplingNearest2d": (lambda: nn.UpsamplingNearest2d(scale_factor=2), IMAGE),
    "MaxPool1d": (lambda: nn.MaxPool1d(2), LINE),
    "AvgPool1d": (lambda: nn.AvgPool1d(2), LINE),
    "AdaptiveMaxPool2d": (lambda: nn.AdaptiveMaxPool2d(2), IMAGE),
    "AdaptiveAvgPool1d": (lambda: nn.AdaptiveAvgPool1d(2), LINE),
    "FractionalMaxPool2d": (lambda: nn.FractionalMaxPool2d(2, output_size=3), IMAGE),
    "LPPool2d": (lambda: nn.LPPool2d(2, 2), IMAGE),
    "ReflectionPad1d": (lambda: nn.ReflectionPad1d(2), LINE),
    "ReplicationPad1d": (lambda: nn.ReplicationPad1d(2), LINE),
    "ConstantPad2d": (lambda: nn.ConstantPad2d(1, 3.0), IMAGE),
    "MultiheadAttention": (lambda: nn.MultiheadAttention(8, 2), LINE),
    "TransformerEncoderLayer": (lambda: nn.TransformerEncoderLayer(8, 2, 8), LINE),
    "RNN": (lambda: nn.RNN(8, 4), LINE),
    "LSTM": (lambda: nn.LSTM(8, 4), LINE),
    "GRU": (lambda: nn.GRU(8, 4), LINE),
    "Embedding": (lambda: nn.Embedding(4, 4), ROW),
    "ModuleList": (lambda: nn.ModuleList([nn.Linear(8, 8)]), ROW),
    "torchlip BatchLipNorm": (lambda: torchlip.modules.normalization.BatchLipNorm(4), IMAGE),
    "torchlip HouseHolder": (lambda: torchlip.HouseHolder(8), ROW),
    "torchlip LipResidual": (lambda: torchlip.LipResidual(), ROW),
    "orthogonium HouseHolder": (lambda: orthogonium.HouseHolder(4), IMAGE),
    "orthogonium HouseHolder_Order_2": (lambda: orthogonium.HouseHolder_Order_2(4), IMAGE),
    "orthogonium ChannelShuffle": (lambda: orthogonium.ChannelShuffle(2, 2), IMAGE),
    "orthogonium AdaptiveOrthoConvTranspose2d": (
        lambda: orthogonium.AdaptiveOrthoConvTranspose2d(4, 4, 2, stride=2),
        IMAGE,
    ),
    "orthogonium SDPBasedLipschitzDense": (lambda: SDPBasedLipschitzDense(8, 8, 8), ROW),
    "orthogonium L2NormResidual": (lambda: L2NormResidual(nn.Linear(8, 8)), ROW),
    # samples mixed
    "Softmax over samples": (lambda: nn.Softmax(0), ROW),
    "Flatten(0)": (lambda: nn.Flatten(0), ROW),
    "Flatten(-2) of rows": (lambda: nn.Flatten(-2), ROW),
    "Unflatten(0)": (lambda: nn.Unflatten(0, (3, 1)), ROW),
    "BatchNorm2d of the batch": (lambda: nn.BatchNorm2d(4, track_running_stats=False), IMAGE),
    "torchlip MaxMin(0)": (lambda: torchlip.MaxMin(0), ROW),
    "torchlip MaxMin(-2) of rows": (lambda: torchlip.MaxMin(-2), ROW),
    "orthogonium MaxMin(0)": (lambda: orthogonium.MaxMin(0), ROW),
    "orthogonium MaxMin(-4) of images": (lambda: orthogonium.MaxMin(-4), IMAGE),
    "torchlip LayerCentering(dim=(0,))": (lambda: torchlip.LayerCentering(4, dim=(0,)), IMAGE),
    "torchlip LayerCentering(dim=0)": (lambda: torchlip.LayerCentering(4, dim=0), IMAGE),
    "torchlip LayerCentering(dim=(-4, 1))": (lambda: torchlip.LayerCentering(4, dim=(-4, 1)), IMAGE),
    "torchlip LayerCentering(dim=())": (lambda: torchlip.LayerCentering(4, dim=()), IMAGE),
    "torchlip LayerCentering of rows": (lambda: torchlip.LayerCentering(8), ROW),
    "orthogonium LayerCentering2D of rows": (lambda: orthogonium.LayerCentering2D(8), ROW),
    "L2NormPool2d of rows": (layers.L2NormPool2d, ROW),
    "PixelUnshuffle of images without channels": (lambda: nn.PixelUnshuffle(2), (6, 6)),
    "Conv2d of images without channels": (lambda: nn.Conv2d(3, 3, 3, padding=1), (6, 6)),
    "OrthoConv2d of images without channels": (lambda: layers.OrthoConv2d(3, 3, 3), (6, 6)),
    # inputs broadcast
    "torchlip BatchCentering(8) of one channel": (lambda: torchlip.BatchCentering(8), (1, 4, 4)),
    "torchlip BatchCentering(8), no bias": (lambda: torchlip.BatchCentering(8, bias=False), (1, 4, 4)),
    "torchlip LayerCentering(8) of one channel": (lambda: torchlip.LayerCentering(8), (1, 4, 4)),
    "orthogonium BatchCentering2D(8) of one channel": (lambda: orthogonium.BatchCentering2D(8), (1, 4, 4)),
    "orthogonium LayerCentering2D(8) of one channel": (lambda: orthogonium.LayerCentering2D(8), (1, 4, 4)),
    "orthogonium BatchCentering2D of rows": (lambda: orthogonium.BatchCentering2D(8), ROW),
    "orthogonium AdditiveResidual to one unit": (lambda: AdditiveResidual(nn.Linear(8, 1)), ROW),
    "orthogonium PrescaledAdditiveResidual to one unit": (lambda: PrescaledAdditiveResidual(nn.Linear(8, 1)), ROW),
    "Sum to one unit": (lambda: layers.Sum(nn.Linear(8, 1)), ROW),
    # settings that no rule covers
    "ReLU in place": (lambda: nn.ReLU(inplace=True), ROW),
    "AvgPool2d, ceil_mode": (lambda: nn.AvgPool2d(2, ceil_mode=True), IMAGE),
    "AvgPool2d, padding not counted": (lambda: nn.AvgPool2d(3, 2, 1, count_include_pad=False), IMAGE),
    "MaxPool2d with indices": (lambda: nn.MaxPool2d(2, return_indices=True), IMAGE),
    "torchlip symmetric padding": (lambda: PadConv2d(4, 4, 5, padding=2, padding_mode="symmetric"), IMAGE),
}


def made(make):
    """A module after some training passes, with parameters at random, in evaluation."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = make()
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if tensor.ndim <= 1 and tensor.is_floating_point() and "sigma" not in name and "scale" not in name:
            noise = torch.randn_like(tensor)
            tensor.data.add_(noise.abs() if "var" in name else 0.3 * noise)
    return module


@pytest.mark.parametrize("name", BOUNDED)
def test_no_slope_exceeds_the_bound_and_no_sample_sees_another(name):
    make, shape = BOUNDED[name]
    module = made(make)
    # orthogonium's parametrizations work in float32 only, and go on moving in evaluation
    rounding = 1e-3 if nn.utils.parametrize.is_parametrized(module) and "orthogonium" in name else 1e-9
    module = module if rounding > 1e-9 else module.double()
    x = torch.randn(4, *shape, dtype=torch.float32 if rounding > 1e-9 else torch.float64)
    for _ in range(10):  # the peers settle their weights in training
        module.train()(x)
    module.eval()
    bound = lipschitz_bound(module, shape)
    with torch.no_grad():
        assert module(x).shape[0] == 4
        torch.testing.assert_close(module(x[:1]), module(x)[:1], rtol=rounding, atol=rounding)
    flat = nn.Sequential(module, nn.Flatten()).eval()
    slopes = [jacobian_norms(flat, 3 * x[:2]).max()]
    for size in (0.1, 3.0) if rounding > 1e-9 else (1e-4, 0.1, 3.0):
        y = x + size * torch.randn_like(x)
        slopes.append(((flat(x) - flat(y)).norm(dim=1) / (x - y).flatten(1).norm(dim=1)).max())
    assert float(max(slopes).detach()) <= bound * (1 + max(1e-9, rounding / 100))
    assert bound < math.inf


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_bound_is_refused(name):
    make, shape = REFUSED[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = make().eval()
    with pytest.raises(UserError):
        lipschitz_bound(module, shape)


def test_the_table_is_as_long_as_the_one_that_found_the_gaps():
    assert len(BOUNDED) + len(REFUSED) >= 167
