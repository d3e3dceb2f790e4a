"""Isotonic regression (Zadrozny and Elkan, 2002)."""

import numpy as np
from sklearn.isotonic import IsotonicRegression

from lipscale.calibration.posthoc.one_vs_rest import Map, OneVsRest


class IsotonicCalibration(OneVsRest):
    """The monotone map of each class's probability with the least squared error: scikit-learn's IsotonicRegression."""

    def _fit_class(self, p: np.ndarray, hit: np.ndarray) -> Map:
        # beyond the probabilities that were seen, the nearest one's value
        found = IsotonicRegression(y_min=0.0, y_max=1.0, out_of_bounds="clip").fit(p, hit)
        return lambda values: found.predict(values) if len(values) else values
