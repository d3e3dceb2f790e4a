"""What people use on tables, by scikit-learn: fitted on the features that a network gets, and kept."""

import hashlib
import re
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lipscale._files import load_tensors, save_tensors
from lipscale.data import Dataset
from lipscale.errors import UserError
from lipscale.training.hardware import one_thread

LOWEST = 1e-12  # a probability of zero for what then happens would cost infinitely much


def _logistic(seed: int, folds: int) -> Any:
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(max_iter=1000)


def _boosting(seed: int, folds: int) -> Any:
    from sklearn.ensemble import HistGradientBoostingClassifier

    return HistGradientBoostingClassifier(random_state=seed)


def _calibrated_boosting(seed: int, folds: int) -> Any:
    from sklearn.calibration import CalibratedClassifierCV

    return CalibratedClassifierCV(_boosting(seed, folds), cv=folds)


LINEAR = "logistic regression"
TABLE_MODELS: dict[str, Callable[[int, int], Any]] = {
    LINEAR: _logistic,
    "gradient boosting": _boosting,
    "gradient boosting + calibration": _calibrated_boosting,
}


class Fitted(NamedTuple):
    """Log-probabilities of the test samples, the CPU-seconds of the fit, and the radii of a linear model."""

    logits: Tensor  # (N, C)
    seconds: float
    radii: Tensor | None = None  # (N,): no smaller change makes the sample wrong; zero where it is


def fitted(name: str, dataset: Dataset, folder: Path, *, seed: int, key: str, on_fit: Callable[[str], None]) -> Fitted:
    """The model's answers on the test part, fitted on the training part, or as they were kept under this key."""
    digest = hashlib.sha256(f"{key} {name} {seed} {version('lipscale')} {version('scikit-learn')}".encode())
    path = folder / f"{re.sub(r'[^a-z]+', '-', name.lower())}-{digest.hexdigest()[:10]}.safetensors"
    try:
        tensors, about = load_tensors(path)
        return Fitted(tensors["logits"], float(about["seconds"]), tensors.get("radii"))
    except (UserError, KeyError, ValueError):  # not there, or damaged
        on_fit(f"{name}, seed {seed}")
        found = _fit(name, dataset, seed)
    tensors = {"logits": found.logits} | ({} if found.radii is None else {"radii": found.radii})
    folder.mkdir(parents=True, exist_ok=True)
    save_tensors(path, tensors, {"seconds": str(found.seconds)})
    return found


def _fit(name: str, dataset: Dataset, seed: int) -> Fitted:
    x, y = dataset.train.inputs[:].double().numpy(), dataset.train.labels.numpy()
    test = dataset.test.inputs[:].double()
    folds = max(2, min(5, int(torch.bincount(dataset.train.labels.long()).min())))
    model = TABLE_MODELS[name](seed, folds)
    with one_thread():  # as the networks have: waiting threads would count as work
        start = time.process_time()
        model.fit(x, y)
        seconds = time.process_time() - start
    known = torch.as_tensor(model.predict_proba(test.numpy()), dtype=torch.float64)
    probabilities = torch.full((len(test), len(dataset.classes)), LOWEST, dtype=torch.float64)
    probabilities[:, torch.as_tensor(model.classes_).long()] = known.clamp(min=LOWEST)
    whole = len(model.classes_) == len(dataset.classes)
    radii = linear_radii(model, test, dataset.test.labels.long()) if name == LINEAR and whole else None
    return Fitted((probabilities / probabilities.sum(1, keepdim=True)).log(), seconds, radii)


def linear_radii(model: Any, inputs: Tensor, labels: Tensor) -> Tensor:
    """How far each input is from a class that is not its own, exactly: min over j of (z_y - z_j) / ||w_y - w_j||."""
    weights, bias = (torch.as_tensor(part, dtype=torch.float64) for part in (model.coef_, model.intercept_))
    if len(weights) == 1:  # of two classes only the second has weights
        weights, bias = torch.cat((torch.zeros_like(weights), weights)), torch.cat((torch.zeros(1), bias))
    logits = inputs.double() @ weights.T + bias  # (N, C)
    own = labels.unsqueeze(1)
    gaps = (logits.gather(1, own) - logits) / torch.cdist(weights, weights)[labels].clamp(min=1e-300)
    return gaps.scatter(1, own, torch.inf).amin(1).clamp(min=0)
