"""Cross-fitting, where a calibration part is too dear: every part of the data takes its turn in being D_cal.

A twin of the network for each part trains on all others, at the same L and by the same plan. The logits of each part by
the twin that has not seen it, all together, are what T* is measured on. The network itself trains on all data.
"""

from collections.abc import Sequence
from copy import deepcopy
from functools import reduce
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lipscale.training.batches import Batches
from lipscale.training.epoch import train_epoch
from lipscale.training.inference import predict

if TYPE_CHECKING:
    from lipscale.training.algorithm import Training


class CrossFit:
    """The parts of the data, and for each of them a training without it."""

    def __init__(self, training: "Training", parts: Sequence[Batches]) -> None:
        self.parts = parts
        self.twins = [self._twin(training, out) for out in range(len(parts))]

    def _twin(self, training: "Training", out: int) -> "Training":
        others = [part for number, part in enumerate(self.parts) if number != out]
        train = reduce(lambda joined, part: joined.join(part), others)
        twin = type(training)(
            deepcopy(training.net), train, None, training.settings, class_weights=training.class_weights
        )
        twin.method = training.method  # a loss that learns is one and the same for all
        return twin

    def logits(self, training: "Training") -> tuple[Tensor, Tensor]:
        """One epoch of every twin, then the logits and labels of all samples, each by the twin that has not seen it.

        No twin can be stopped within its epoch: there are few samples, or they would have been split.
        """
        found = []
        for twin, part in zip(self.twins, self.parts, strict=True):
            twin.history = training.history  # what is planned for this epoch is planned for all
            train_epoch(twin, twin.train, phase=1, should_stop=lambda: False)
            found.append(predict(twin.net, part))
        logits, labels = zip(*found, strict=True)
        return torch.cat(logits), torch.cat(labels)
