"""Binary calibrators for many classes: each class against the rest, then normalised."""

from abc import abstractmethod
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from lipscale.calibration.posthoc.calibrator import Calibrator

# the least probability before normalisation: what a calibration set has not seen is rare, but it is not impossible
FLOOR = 1e-6

Map = Callable[[np.ndarray], np.ndarray]


class OneVsRest(Calibrator):
    """p_c -> q_c / sum_k q_k with q_c = max(map_c(p_c), FLOOR); a new one writes the map of one class.

    `transform` returns log-probabilities.
    """

    _maps: list[Map]

    def _fit(self, logits: Tensor, labels: Tensor) -> None:
        p, y = logits.softmax(1).cpu().numpy(), labels.cpu().numpy()
        self._maps = [self._fit_class(p[:, c], (y == c).astype(np.float64)) for c in range(p.shape[1])]

    def _transform(self, logits: Tensor) -> Tensor:
        p = logits.softmax(1).cpu().numpy()
        q = np.stack([apply(p[:, c]) for c, apply in enumerate(self._maps)], axis=1)  # (N, C)
        q = np.maximum(q, FLOOR)
        return torch.from_numpy(np.log(q / q.sum(1, keepdims=True))).to(logits)

    @abstractmethod
    def _fit_class(self, p: np.ndarray, hit: np.ndarray) -> Map:
        """The map of one class, from its probabilities (N,) and whether it was the true one (N,)."""
