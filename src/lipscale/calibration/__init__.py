"""Calibration: the temperature T*, the feedback that moves L by it, and post-hoc calibrators to compare with.

temperature   T* = argmin NLL(z / T), its interval, and the test of T = 1
feedback      the rules L <- L / T*, pure numbers
scheduler     the rules on a network, in the idiom of torch's schedulers
posthoc       other calibrators with one interface
"""

from lipscale.calibration.feedback import Feedback, PaperFeedback, SteadyFeedback
from lipscale.calibration.scheduler import CalibrationStep, LipschitzScheduler
from lipscale.calibration.temperature import (
    Temperature,
    fit_temperature,
    measure_temperature,
    temperature_p_value,
)

__all__ = [
    "CalibrationStep",
    "Feedback",
    "LipschitzScheduler",
    "PaperFeedback",
    "SteadyFeedback",
    "Temperature",
    "fit_temperature",
    "measure_temperature",
    "temperature_p_value",
]
