"""Post-hoc calibrators: maps of a finished network's logits, fitted on a calibration set that it never trained on.

    none                           as they are, to compare with
    temperature                    z / T*
    vector, matrix, dirichlet      affine maps of the logits or log-probabilities (convex, solved to the optimum)
    histogram, isotonic, bbq       each class's probability by itself, then normalised

All have `fit(logits, labels)` and `transform(logits)`; `compare` puts them side by side.
"""

from lipscale.calibration.posthoc.affine import DirichletCalibration, MatrixScaling, VectorScaling
from lipscale.calibration.posthoc.calibrator import Calibrator, TemperatureScaling, Unchanged
from lipscale.calibration.posthoc.compare import CALIBRATORS, Row, calibrator, compare
from lipscale.calibration.posthoc.one_vs_rest import BayesianBinning, HistogramBinning, IsotonicCalibration

__all__ = [
    "CALIBRATORS",
    "BayesianBinning",
    "Calibrator",
    "DirichletCalibration",
    "HistogramBinning",
    "IsotonicCalibration",
    "MatrixScaling",
    "Row",
    "TemperatureScaling",
    "Unchanged",
    "VectorScaling",
    "calibrator",
    "compare",
]
