"""Conformal sets in one figure: how large robust sets are, and what they cover, over epsilon."""

from matplotlib.figure import Figure

from lipscale.report.theme import BAD, FAINT, GOOD, INK, Drawn, style
from lipscale.runs import ConformalResult


def set_sizes(result: ConformalResult, unit: str) -> Drawn | None:
    """Mean sizes of robust sets and of the published ones, and coverage under attack; none without an epsilon."""
    if not result.curve:
        return None
    epsilons, points = result.curve["epsilon"], [float(eps) for eps in result.at]
    with style():
        figure = Figure(figsize=(7.6, 3.0))
        sizes, coverage = figure.subplots(1, 2, sharex=True)
        sizes.plot(epsilons, result.curve["size"], color=GOOD, label="robust sets")
        if "box_size" in result.curve:
            sizes.plot(epsilons, result.curve["box_size"], color=BAD, linestyle="--", label="published box")
        coverage.axhline(1 - result.alpha, color=FAINT, linestyle=":", label="promised")
        coverage.plot([0.0], [result.plain.coverage], "o", color=INK, label="plain sets, no attack")
        for name, colour in (("robust", GOOD), ("plain", BAD)):
            found = [getattr(at, f"{name}_under_attack") for at in result.at.values()]
            known = [(eps, of.coverage) for eps, of in zip(points, found, strict=True) if of is not None]
            if known:
                coverage.plot(*zip(*known, strict=True), "o-", color=colour, label=f"{name} sets under attack")
        sizes.set(xlabel=f"epsilon ({unit})", ylabel="mean size of a set", ylim=(0, None))
        coverage.set(xlabel=f"epsilon ({unit})", ylabel="coverage")
        sizes.legend()
        coverage.legend()
    said = [
        f"At {eps}: {at.robust.size:.2f} classes on average, coverage {at.robust.coverage:.3f}."
        for eps, at in result.at.items()
    ]
    return Drawn("conformal", "Robust conformal sets", figure, said)
