"""All calibrators by name, and a comparison of them on one network's logits."""

from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor

from lipscale.calibration.posthoc.affine import DirichletCalibration, MatrixScaling, VectorScaling
from lipscale.calibration.posthoc.calibrator import Calibrator, TemperatureScaling, Unchanged
from lipscale.calibration.posthoc.one_vs_rest import BayesianBinning, HistogramBinning, IsotonicCalibration
from lipscale.errors import UserError
from lipscale.metrics import measure

CALIBRATORS: dict[str, type[Calibrator]] = {
    "none": Unchanged,
    "temperature": TemperatureScaling,
    "vector": VectorScaling,
    "matrix": MatrixScaling,
    "dirichlet": DirichletCalibration,
    "histogram": HistogramBinning,
    "isotonic": IsotonicCalibration,
    "bbq": BayesianBinning,
}


@dataclass(frozen=True)
class Row:
    """What a calibrator made of a network, on the test part."""

    name: str
    accuracy: float
    nll: float
    ece: float
    ece_limit: float  # what a calibrated model would stay below
    calibrated: bool | None  # to within two points; none where the test samples cannot decide
    keeps_radii: bool  # the network's certified radii hold for it as they are


def calibrator(name: str) -> Calibrator:
    """A calibrator with its defaults, by name."""
    if name not in CALIBRATORS:
        raise UserError(f"unknown calibrator {name!r}; known: {', '.join(CALIBRATORS)}")
    return CALIBRATORS[name]()


def compare(
    calibration_logits: Tensor,
    calibration_labels: Tensor,
    test_logits: Tensor,
    test_labels: Tensor,
    *,
    names: Iterable[str] = tuple(CALIBRATORS),
) -> list[Row]:
    """Fit each calibrator on the calibration set alone, and measure it on the test set.

    The verdict is the same for all. The ECE's limit allows for the error of a T* from that many calibration samples;
    where nothing was fitted, for none.

    Args:
        calibration_logits: (N, C).
        calibration_labels: (N,).
        test_logits: (M, C), of the same network.
        test_labels: (M,).
        names: of the calibrators, among CALIBRATORS; by default all.

    Returns:
        A row for each calibrator, in the order of the names.

    Example:
        >>> import torch
        >>> from lipscale.calibration.posthoc import compare
        >>> logits = 3 * torch.randn(400, 3, generator=torch.Generator().manual_seed(0))
        >>> labels = torch.multinomial((logits / 2).softmax(1), 1, generator=torch.Generator().manual_seed(0)).flatten()
        >>> rows = compare(logits[:200], labels[:200], logits[200:], labels[200:], names=["none", "temperature"])
        >>> rows[1].nll < rows[0].nll
        True
    """
    rows = []
    for name in names:
        fitted = calibrator(name).fit(calibration_logits, calibration_labels)
        size = 0 if isinstance(fitted, Unchanged) else len(calibration_labels)
        found = measure(fitted.transform(test_logits), test_labels, calibration_size=size)
        rows.append(
            Row(name, found.accuracy, found.nll, found.ece, found.ece_limit, found.calibrated, fitted.keeps_radii)
        )
    return rows
