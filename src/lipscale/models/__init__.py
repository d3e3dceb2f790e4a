"""The networks: each is a torch.nn.Sequential of parts, constrained or as its unconstrained twin."""

from lipscale.models.build import DEFAULT_DEPTH, DEFAULT_WIDTH, build, mirrors_by_construction, suitable_model
from lipscale.models.convnet import convnet
from lipscale.models.mlp import mlp
from lipscale.models.parts import LIPSCHITZ, UNCONSTRAINED, Parts, default_padding, parts_of, reference_parts
from lipscale.models.patchnet import patchnet
from lipscale.models.resnet import resnet18

__all__ = [
    "DEFAULT_DEPTH",
    "DEFAULT_WIDTH",
    "LIPSCHITZ",
    "UNCONSTRAINED",
    "Parts",
    "build",
    "convnet",
    "default_padding",
    "mirrors_by_construction",
    "mlp",
    "parts_of",
    "patchnet",
    "reference_parts",
    "resnet18",
    "suitable_model",
]
