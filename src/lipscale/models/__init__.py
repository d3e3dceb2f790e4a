"""The networks: each is a torch.nn.Sequential of parts, constrained or as its unconstrained twin."""

from lipscale.models.convnet import convnet
from lipscale.models.mlp import mlp
from lipscale.models.parts import LIPSCHITZ, REFERENCE, UNCONSTRAINED, Parts, parts_of
from lipscale.models.resnet import resnet18

__all__ = ["LIPSCHITZ", "REFERENCE", "UNCONSTRAINED", "Parts", "convnet", "mlp", "parts_of", "resnet18"]
