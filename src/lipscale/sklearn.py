"""A calibrated, certified classifier for scikit-learn's pipelines."""

import math
import warnings
from dataclasses import replace
from typing import Any, Self, cast

import numpy as np
import torch
from scipy.sparse import issparse
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, check_is_fitted, column_or_1d, validate_data
from torch import Tensor, nn

from lipscale.certificates import Certificate, prove
from lipscale.data import Column, Dataset, Preprocessing, Samples, prepare
from lipscale.data.encode import encode, ready_epsilon, whole_raw_radius
from lipscale.data.frame import is_frame, open_frame
from lipscale.data.inputs import from_table
from lipscale.data.table import read_table
from lipscale.layers import OrthoLinear
from lipscale.runs.assembly import assemble, resolve
from lipscale.settings import DataSettings, Settings, TrainingSettings
from lipscale.training import fit
from lipscale.training.defaults import LARGEST_SHARE


class LipschitzClassifier(ClassifierMixin, BaseEstimator):
    """An MLP trained with LiST: calibrated probabilities, and a certified radius for every prediction.

    Columns may hold numbers, with gaps, and in a DataFrame also categories and dates. Radii are in the units of X, with
    standardising or without. Behind a scaler in a Pipeline they are in the units of what the scaler hands on.

    Args:
        epochs: The budget: the whole training is planned for it.
        offset: Margin offset xi of the loss; larger is more robust, often less accurate.
        margin: The same in units of the radius, in standard deviations where `standardize` is on.
        width: Units a layer; left out, what suits the table.
        depth: Hidden layers; left out, two, or none where a linear model is as good.
        class_weight: None, "balanced" or a dictionary. p_k becomes proportional to w_k p_k, which is what weighted
            training aims at, but exact: calibrated for a population with such weights, and no radius is lost to it.
        standardize: Divide every column by its standard deviation before the network; turn it off where columns
            share a unit, because a radius over several columns is that of the one with the smallest deviation.
        random_state: Fixes everything that is random.

    Attributes:
        classes_: What is answered.
        lipschitz_: L*.
        calibrated_: Whether there was something to calibrate with; if not, nothing is claimed of the probabilities.

    Example:
        >>> from sklearn.datasets import load_wine
        >>> from lipscale.sklearn import LipschitzClassifier
        >>> X, y = load_wine(return_X_y=True)
        >>> model = LipschitzClassifier(epochs=5, random_state=0).fit(X, y)
        >>> model.certified_radius(X).shape
        (178,)
    """

    def __init__(
        self,
        *,
        epochs: int = 40,
        offset: float = 0.0,
        margin: float = 0.0,
        width: int | None = None,
        depth: int | None = None,
        class_weight: Any = None,
        standardize: bool = True,
        random_state: Any = None,
    ) -> None:
        self.epochs = epochs
        self.offset = offset
        self.margin = margin
        self.width = width
        self.depth = depth
        self.class_weight = class_weight
        self.standardize = standardize
        self.random_state = random_state

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags

    def fit(self, X: Any, y: Any) -> Self:
        """Train on rows X (N, F) and labels y (N,)."""
        raw, columns, y = self._table(X, y)
        check_classification_targets(y)
        self.classes_, labels = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"there is nothing to tell apart: y has one class, {self.classes_[0]!r}")
        weights = compute_class_weight(self.class_weight, classes=self.classes_, y=y)
        if not ((weights > 0) & np.isfinite(weights)).all():
            raise ValueError(f"expected a positive, finite weight for every class, got {weights.tolist()}")
        samples = Samples(raw, torch.from_numpy(labels).long())
        names, untested = tuple(map(str, range(len(self.classes_)))), samples.cut(1)[0]
        dataset = Dataset("X", samples, untested, names, columns=columns)
        preprocessing = None if self.standardize else _unscaled(prepare(dataset)[1])
        dataset, self.preprocessing_ = prepare(dataset, preprocessing)
        self.calibrated_ = int(np.bincount(labels).min()) > 1 and len(labels) >= 1 / LARGEST_SHARE
        if not self.calibrated_:
            problem = f"{len(labels)} samples, or a class of one sample, leave none to calibrate with"
            warnings.warn(f"{problem}: nothing is claimed of the probabilities", UserWarning, stacklevel=2)
        settings = resolve(self._settings(), dataset, self.preprocessing_)
        parts = assemble(settings, dataset, self.preprocessing_)
        values = settings.model_dump(include=set(TrainingSettings.model_fields))
        found = fit(parts.net, parts.train, parts.calibration, progress=False, **values)
        self.n_iter_, self.lipschitz_ = len(found.history), found.lipschitz
        _weigh(found.net, weights)
        self.proof_ = prove(found.net, self.preprocessing_.input_shape)
        return self

    def predict(self, X: Any) -> np.ndarray:
        """The most probable class of each row, (N,)."""
        chosen = self._certified(X).logits.argmax(1).numpy()
        return self.classes_[chosen]

    def predict_proba(self, X: Any) -> np.ndarray:
        """The probability of every class, (N, C)."""
        return self._certified(X).logits.softmax(1).numpy()

    def decision_function(self, X: Any) -> np.ndarray:
        """The logits (N, C); of two classes their difference, (N,)."""
        logits = self._certified(X).logits
        return (logits[:, 1] - logits[:, 0] if logits.shape[1] == 2 else logits).numpy()

    def certified_radius(self, X: Any) -> np.ndarray:
        """How far the numbers of each row may move, in l2 norm and the units of X, before the answer can change."""
        ready = self._ready(X)
        return whole_raw_radius(self.proof_(ready).radius(), ready, self.preprocessing_).numpy()

    def predict_interval(self, X: Any, epsilon: float) -> np.ndarray:
        """Between what, (N, 2), the answer's probability stays for every change up to epsilon, in the units of X."""
        if not 0 <= epsilon < math.inf:
            raise ValueError(f"expected epsilon >= 0, got {epsilon}")
        ready = self._ready(X)
        moved = ready_epsilon(epsilon, ready, self.preprocessing_)
        return torch.stack(self.proof_(ready).confidence(moved), 1).numpy()

    def _settings(self) -> Settings:
        names = ("epochs", "offset", "margin", "width", "depth")
        seed = int(check_random_state(self.random_state).randint(2**31))
        method = {} if self.calibrated_ else {"method": "fixed", "lipschitz": 1.0}
        return Settings.checked(
            {**{name: getattr(self, name) for name in names}, **method, "model": "mlp", "seed": seed, "device": "cpu"}
        )

    def _table(self, X: Any, y: Any) -> tuple[Tensor, tuple[Column, ...], np.ndarray]:
        """Raw rows (N, columns), what the columns hold, and the labels."""
        if not _has_more_than_numbers(X):
            X, y = validate_data(self, X, y, dtype=np.float64, ensure_all_finite="allow-nan")
            names = getattr(self, "feature_names_in_", range(X.shape[1]))
            return torch.from_numpy(X.copy()), tuple(Column(str(name)) for name in names), y
        validate_data(self, X, skip_check_array=True)  # the names
        samples, columns, _ = read_table(open_frame(X), DataSettings())
        y = column_or_1d(y, warn=True)
        check_consistent_length(samples.inputs, y)
        return samples.inputs[:], columns, y

    def _ready(self, X: Any) -> Tensor:
        """Rows as the network takes them."""
        check_is_fitted(self)
        if _has_more_than_numbers(X):
            validate_data(self, X, reset=False, skip_check_array=True)
            return from_table(open_frame(X), self.preprocessing_).ready
        X = validate_data(self, X, reset=False, dtype=np.float64, ensure_all_finite="allow-nan")
        return encode(torch.from_numpy(X.copy()), self.preprocessing_)

    def _certified(self, X: Any) -> Certificate:
        ready = self._ready(X)
        return self.proof_(ready)


def _has_more_than_numbers(X: Any) -> bool:
    """Whether this is a table with categories, texts or dates among its columns."""
    return is_frame(X) and not issparse(X) and np.asarray(X).dtype.kind not in "fiub"


def _unscaled(done: Preprocessing) -> Preprocessing:
    """The same columns, but numbers keep their units."""
    stds = tuple(1.0 for _ in done.column_std)
    return replace(done, column_std=stds, columns=tuple(replace(column, long_tail=False) for column in done.columns))


def _weigh(net: nn.Module, weights: np.ndarray) -> None:
    """z_k <- z_k + log w_k: the probabilities where a sample of class k counts as w_k of them. No difference of logits
    changes its slope, so every bound stays.
    """
    head = cast(OrthoLinear, net.get_submodule("head"))
    assert head.bias is not None
    with torch.no_grad():
        head.bias.add_(torch.from_numpy(weights).log().to(head.bias) / head.scale)
