"""What to say where a calibration set cannot steer L, or knows T* poorly; and how many samples would do."""

import math

from lipscale.calibration.feedback import DEGENERATE_STEP, DEGENERATE_TOTAL, UNKNOWN
from lipscale.calibration.temperature import Temperature

# of log T*: what a calibration set should reach, and where it is too small to steer by
GOOD_ERROR, POOR_ERROR = 0.1, 0.25
# so few misclassified samples, and so small a share, say little about how many there would be among more
FEW_ERRORS, RARE = 5, 0.1
MORE, MORE_DATA = "use more data or a larger `calibration_fraction`", "use more data"


def cannot_steer(temperature: float, *, size: int, wrong: int | None = None, held: bool = False) -> str:
    """A degenerate T* (Assumption 2) in words, and what happens instead; `wrong` of the samples were misclassified."""
    if temperature == 0 or wrong == 0:
        reason = f"none of the {size} calibration samples is misclassified"
    elif wrong is not None and wrong < min(FEW_ERRORS, RARE * size):
        reason = f"only {wrong} of the {size} calibration samples {'is' if wrong == 1 else 'are'} misclassified"
    else:
        better = "no" if math.isinf(temperature) else "hardly"
        reason = f"the network is {better} better than chance on the {size} calibration samples"
    if held:
        return f"{reason}: T* says nothing yet, and L stays at what it is until it does"
    return (
        f"{reason}: T* = {temperature:.3g} can only tell L to {'grow' if temperature < 1 else 'shrink'}. Such steps "
        f"move L by at most a factor of {DEGENERATE_STEP:g} an epoch and {DEGENERATE_TOTAL:g} in all. In the first "
        "epochs that does no harm; if it lasts, a larger calibration set may steer L."
    )


def poor_resolution(measure: Temperature, size: int, *, right: int, guessed: float, is_all: bool = False) -> str | None:
    """A warning where the calibration set is too small to steer by, or none.

    `right` of its samples are classified correctly; the commonest class alone would be right for a share of `guessed`.
    Where they are all the data there are, a larger share of them is no way out.
    """
    more = MORE_DATA if is_all else MORE
    if measure.error <= POOR_ERROR:
        return None
    few = size - right < min(FEW_ERRORS, RARE * size)
    if measure.error >= UNKNOWN and not few:
        told = (
            f"the {size} calibration samples cannot tell the network from chance ({right / size:.0%} of them are "
            f"right, {guessed:.0%} by guessing), so L means little"
        )
        needed = _samples_beyond_chance(right / size, guessed)
        if needed is None or needed <= size:
            return f"{told}: {more}, or a better model"
        return f"{told}; about {needed} could, if that is its accuracy: {more}"
    needed = measure.samples_for(GOOD_ERROR, measured_on=size)
    return (
        f"{size} calibration samples know T* to a factor of {math.exp(measure.error):.2f} only (one standard error), "
        f"and L with it; {'at least' if few else 'about'} {needed} would know it to {GOOD_ERROR:.0%}"
        f"{f', and more if errors stay as rare ({size - right} here)' if few else ''}: {more}"
    )


def _samples_beyond_chance(accuracy: float, guessed: float) -> int | None:
    """How many samples set this accuracy two standard deviations apart from guessing, if it is above."""
    if accuracy <= guessed:
        return None
    return math.ceil(4 * guessed * (1 - guessed) / (accuracy - guessed) ** 2)
