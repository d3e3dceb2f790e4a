"""The test samples that are worth looking at, and their pictures."""

import base64
import io
from dataclasses import dataclass

import torch
from PIL import Image
from torch import Tensor

from lipscale.data import Stored, as_input

SHOWN = 8  # hardest and easiest samples, each
LARGEST_PICTURE = 256


@dataclass(frozen=True)
class Sample:
    """A test sample, and what the network said about it."""

    index: int
    image: Tensor | None  # (C, H, W) in [0, 1]; none for a table's row
    truth: str
    predicted: str
    probability: float
    radius: float

    @property
    def picture(self) -> str | None:
        """A PNG as a data URL; small pictures are magnified pixel by pixel, by the browser."""
        if self.image is None:
            return None
        pixels = (self.image[:3] * 255).round().clamp(0, 255).byte().movedim(0, -1).cpu().numpy()
        picture = Image.fromarray(pixels if pixels.shape[-1] == 3 else pixels[..., 0])
        picture.thumbnail((LARGEST_PICTURE, LARGEST_PICTURE))
        data = io.BytesIO()
        picture.save(data, "PNG")
        return "data:image/png;base64," + base64.b64encode(data.getvalue()).decode()


def worth_seeing(
    logits: Tensor, labels: Tensor, radii: Tensor, inputs: Tensor | Stored | None, classes: tuple[str, ...]
) -> tuple[tuple[Sample, ...], tuple[Sample, ...]]:
    """The hardest: most confident errors first, then the smallest radii. The easiest: the largest radii.

    Without a certificate no radius tells them apart, and the confidence stands in for it.
    """
    confidence, predicted = torch.softmax(logits.double(), 1).max(1)
    right = predicted == labels
    distance = radii.clamp(max=1e12) if radii.any() else confidence
    hardness = torch.where(right, -distance, 1 + confidence)
    ease = distance.masked_fill(~right, -torch.inf)

    def sample(i: int) -> Sample:
        image = as_input(inputs[i : i + 1])[0].float() if inputs is not None and inputs.ndim == 4 else None
        truth, answer = classes[int(labels[i])], classes[int(predicted[i])]
        return Sample(i, image, truth, answer, float(confidence[i]), float(radii[i]))

    hardest = map(sample, hardness.topk(min(SHOWN, len(hardness))).indices.tolist())
    easiest = map(sample, ease.topk(min(SHOWN, int(right.sum()))).indices.tolist())
    return tuple(hardest), tuple(easiest)
