"""The networks that are compared: lipscale's, one of the peers' layers as they come, and the unconstrained twin."""

from functools import partial

import deel.torchlip as torchlip
import torch
from orthogonium.layers.conv.AOC import AdaptiveOrthoConv2d
from schedulefree import AdamWScheduleFree
from torch import nn

from lipscale import models
from lipscale.layers import ConvexResidual
from lipscale.losses import offset_cross_entropy
from lipscale.training.hardware import keep_freed_memory

BATCH, SIZE, CLASSES = 128, 32, 10


def _peer_conv(inputs, outputs, kernel_size, *, stride=1, bias=True, padding_mode="circular"):
    padding = (kernel_size - 1) // 2
    return AdaptiveOrthoConv2d(
        inputs, outputs, kernel_size, stride=stride, padding=padding, bias=bias, padding_mode=padding_mode
    )


PEERS = models.Parts(
    conv=_peer_conv,
    linear=torchlip.SpectralLinear,
    norm=torchlip.BatchCentering,
    activation=torchlip.GroupSort2,
    fold=torchlip.GroupSort2,  # which this network has none of
    pool=lambda: nn.Sequential(torchlip.ScaledAdaptativeL2NormPool2d(), nn.Flatten()),
    residual=ConvexResidual,
)
CONTESTANTS = {"twin": models.UNCONSTRAINED, "orthogonium": PEERS, "lipscale": models.LIPSCHITZ}
EXTRA = {
    # all else ours, so that the weights alone are compared
    "reference layers": models.reference_parts(),
    "orthogonium, zeros": models.Parts(**{**vars(PEERS), "conv": partial(_peer_conv, padding_mode="zeros")}),
    "lipscale, circular": models.parts_of(padding="circular"),
}


class Contestant:
    """A network, its optimizer and a fixed batch, ready to take a step or to predict."""

    def __init__(self, parts, width, *, make=models.resnet18, batch=BATCH, size=SIZE, channels_last=False):
        torch.manual_seed(0)
        keep_freed_memory()  # as a training does
        options = {"image_size": size} if make is models.resnet18 else {}
        self.net = make(CLASSES, 3, width, parts=parts, **options)
        self.inputs, self.labels = torch.rand(batch, 3, size, size), torch.randint(CLASSES, (batch,))
        if channels_last:
            self.inputs = self.inputs.contiguous(memory_format=torch.channels_last)
        with torch.no_grad():
            self.net(self.inputs[:2])  # in training, so that centering has a mean to evaluate with
        self.optimizer = AdamWScheduleFree([p for p in self.net.parameters() if p.requires_grad], lr=1e-3)

    def train_step(self, *, reduced=False):
        """Forward, backward, optimizer; `reduced` computes the forward pass in bfloat16."""
        self.net.train()
        self.optimizer.train()
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=reduced):
            logits = self.net(self.inputs)
        offset_cross_entropy(logits.float(), self.labels).backward()
        self.optimizer.step()

    def train_step_bfloat16(self):
        """A step as `lipscale train` takes it where the processor has bfloat16."""
        self.train_step(reduced=True)

    @torch.no_grad()
    def predict(self):
        """The logits of one batch in evaluation."""
        self.net.eval()
        return self.net(self.inputs)
