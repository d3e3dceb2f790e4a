"""The test samples that are worth looking at, and their pictures."""

import base64
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import torch
from PIL import Image
from torch import Tensor

from lipscale.data import Column, Stored, as_input

SHOWN = 8  # hardest and easiest samples, each
LARGEST_PICTURE = 256


@dataclass(frozen=True)
class Sample:
    """A test sample, and what the network said about it."""

    index: int
    image: Tensor | None  # (C, H, W) in [0, 1]; none for a table's row
    values: dict[str, str]  # of a table's row, by column
    truth: str
    predicted: str
    probability: float
    radius: float

    @property
    def picture(self) -> str | None:
        """A PNG as a data URL; small pictures are magnified pixel by pixel, by the browser."""
        return None if self.image is None else f"data:image/png;base64,{as_png(self.image, largest=LARGEST_PICTURE)}"


def as_png(image: Tensor, *, largest: int | None = None) -> str:
    """A picture (C, H, W) in [0, 1] as a PNG in base64, its sides at most `largest`."""
    pixels = (image[:3] * 255).round().clamp(0, 255).byte().movedim(0, -1).cpu().numpy()
    picture = Image.fromarray(pixels if pixels.shape[-1] == 3 else pixels[..., 0])
    if largest is not None:
        picture.thumbnail((largest, largest))
    data = io.BytesIO()
    picture.save(data, "PNG")
    return base64.b64encode(data.getvalue()).decode()


def worth_seeing(
    logits: Tensor,
    labels: Tensor,
    radii: Tensor,
    inputs: Tensor | Stored | None,
    classes: tuple[str, ...],
    columns: Sequence[Column] = (),
) -> tuple[tuple[Sample, ...], tuple[Sample, ...]]:
    """The hardest: most confident errors first, then the smallest radii. The easiest: the largest radii.

    Inputs are as files have them. Without a certificate no radius tells samples apart, and confidence stands in for it.
    """
    confidence, predicted = torch.softmax(logits.double(), 1).max(1)
    right = predicted == labels
    distance = radii.clamp(max=1e12) if radii.any() else confidence
    hardness = torch.where(right, -distance, 1 + confidence)
    ease = distance.masked_fill(~right, -torch.inf)

    def sample(i: int) -> Sample:
        raw = None if inputs is None else inputs[i : i + 1]
        image = as_input(raw)[0] if raw is not None and raw.ndim == 4 else None
        values = _values(raw[0], columns) if raw is not None and raw.ndim == 2 else {}
        truth, answer = classes[int(labels[i])], classes[int(predicted[i])]
        return Sample(i, image, values, truth, answer, float(confidence[i]), float(radii[i]))

    hardest = map(sample, hardness.topk(min(SHOWN, len(hardness))).indices.tolist())
    easiest = map(sample, ease.topk(min(SHOWN, int(right.sum()))).indices.tolist())
    return tuple(hardest), tuple(easiest)


def _values(row: Tensor, columns: Sequence[Column]) -> dict[str, str]:
    """A table's row as people wrote it: numbers, categories by name."""
    named = columns or [Column(f"column {i}") for i in range(len(row))]
    return {column.name: _value(value, column) for column, value in zip(named, row.tolist(), strict=True)}


def _value(value: float, column: Column) -> str:
    if math.isnan(value):
        return "missing"
    if column.dates:  # days since 1970
        return f"{datetime(1970, 1, 1) + timedelta(days=value):%Y-%m-%d}"
    if column.categories:
        return column.categories[int(value)] if value >= 0 else "unseen"
    return f"{value:.6g}"
