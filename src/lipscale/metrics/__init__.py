"""How good and how honest the probabilities are: functions of logits (N, C), or probabilities, and labels (N,).

    accuracy, nll, brier, brier_parts               the scores
    ece, esce, maximum_ce                           over bins of equal width
    adaptive_ece, classwise_ece, smooth_ece         over bins of equal mass, class by class, without bins
    ece_floor, ece_limit                            what a calibrated model would show
    aurc, selective_risk                            errors among the surest answers
    score_classes                                   confusion, recall, precision, AUC, calibration of each class
    calibration_error                               how far off, with limits, and whether that is within a tolerance
    measure                                         all of it, with intervals
    how_far_off, temperature_sentence, ...          the verdict in sentences

Each takes `probabilities=True` where the first argument holds probabilities.
"""

from lipscale.metrics.binned import (
    Bins,
    BrierParts,
    adaptive_ece,
    brier_parts,
    classwise_ece,
    ece,
    esce,
    maximum_ce,
    reliability,
)
from lipscale.metrics.class_verdict import beside_the_majority, class_advice, empty_praise
from lipscale.metrics.classes import ClassScores, score_classes
from lipscale.metrics.floor import Floor, ece_floor, ece_limit
from lipscale.metrics.predictions import Predictions, accuracy, brier, nll
from lipscale.metrics.ranking import OperatingPoints, operating_points
from lipscale.metrics.selective import aurc, selective_risk
from lipscale.metrics.smooth import smooth_ece
from lipscale.metrics.summary import Intervals, Scores, measure
from lipscale.metrics.tolerance import CalibrationError, calibration_error
from lipscale.metrics.verdict import as_good_as_its_set, how_far_off, temperature_sentence

__all__ = [
    "Bins",
    "BrierParts",
    "CalibrationError",
    "ClassScores",
    "Floor",
    "Intervals",
    "OperatingPoints",
    "Predictions",
    "Scores",
    "accuracy",
    "adaptive_ece",
    "as_good_as_its_set",
    "aurc",
    "beside_the_majority",
    "brier",
    "brier_parts",
    "calibration_error",
    "class_advice",
    "classwise_ece",
    "ece",
    "ece_floor",
    "ece_limit",
    "empty_praise",
    "esce",
    "how_far_off",
    "maximum_ce",
    "measure",
    "nll",
    "operating_points",
    "reliability",
    "score_classes",
    "selective_risk",
    "smooth_ece",
    "temperature_sentence",
]
