"""A comparison in one small chart: the log-loss and the calibration error of each classifier."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from lipscale.experiments.choice import log_loss
from lipscale.experiments.compare import Candidate
from lipscale.metrics.verdict import points
from lipscale.report.theme import BAND, INK, SERIES, Drawn, style


def compared(candidates: Sequence[Candidate], chosen: Candidate) -> Drawn:
    """Bars from the lowest log-loss on, the chosen one in colour; calibration errors with their upper limits."""
    order = sorted(candidates, key=log_loss, reverse=True)  # the first one is drawn lowest
    names, colours = [c.name for c in order], [SERIES[0] if c is chosen else BAND for c in order]
    errors = [100 * (c.mean(lambda seed: seed.scores.calibration_error) or 0.0) for c in order]
    limits = [100 * (c.mean(lambda seed: seed.scores.calibration_error_limits[1]) or 0.0) for c in order]
    above = [max(0.0, limit - error) for error, limit in zip(errors, limits, strict=True)]
    with style():
        figure = Figure(figsize=(7.6, 0.9 + 0.3 * len(order)))
        losses, calibration = figure.subplots(1, 2, sharey=True)
        losses.barh(names, list(map(log_loss, order)), color=colours)
        calibration.barh(names, errors, color=colours, xerr=[[0.0] * len(order), above], ecolor=INK, capsize=2)
        losses.set(xlabel="log-loss")
        calibration.set(xlabel="calibration error (points)")
    said = [f"{c.name}: log-loss {log_loss(c):.4f}, {points(e / 100)}." for c, e in zip(order, errors, strict=True)]
    return Drawn("compared", "Log-loss and calibration error", figure, said[::-1])
