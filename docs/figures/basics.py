"""Draw the pictures of FIVE_MINUTES.md that need no training: python docs/figures/basics.py (a second)."""

import numpy as np
from look import save
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from lipscale.report.theme import BAD, BAND, FAINT, GOOD, INK, SERIES, style

ARROW = {"arrowstyle": "<->", "color": INK, "linewidth": 1.2, "shrinkA": 0, "shrinkB": 0}


def slope() -> None:
    """A lead that cannot fall faster than its slope bound lasts for a distance of lead / slope."""
    with style():
        figure = Figure(figsize=(7.2, 3.1))
        for axes, constant in zip(figure.subplots(1, 2, sharey=True), (1.0, 2.0), strict=True):
            _lead(axes, constant)
        save(figure, "slope", "The lead of a class cannot fall faster than its slope bound")


def _lead(axes: Axes, constant: float) -> None:
    lead, radius = 1.2, 1.2 / constant
    away = np.linspace(-1.6, 1.6, 81)
    # a function whose slope stays within the bound: the wave's slope is at most 0.3 + 0.5 = 0.8 of it
    curve = lead + constant * (-0.3 * away + 0.25 * np.sin(2 * away))
    axes.fill_between(
        away, lead - constant * abs(away), lead + constant * abs(away), color=BAND, alpha=0.25, linewidth=0
    )
    axes.plot(away, lead - constant * abs(away), color=FAINT, linewidth=1, linestyle="--")
    axes.plot(away, curve, color=GOOD, label="lead of the answer")
    axes.plot([0], [lead], "o", color=INK)
    axes.axhline(0, color=INK, linewidth=1)
    for side in (-1, 1):
        axes.annotate("", (side * radius, -0.18), (0, -0.18), arrowprops=ARROW)
        axes.axvline(side * radius, color=BAD, linewidth=1, linestyle=":")
    axes.text(0, -0.3, f"safe within {radius:g}", ha="center", va="top")
    axes.set(title=f"slope at most {constant:g}", xlabel="change of the input", xlim=(-1.6, 1.6), ylim=(-1.1, 3.2))
    if constant == 1:
        axes.set_ylabel("lead over the next class")


def temperature() -> None:
    """The same three scores as probabilities, at three temperatures."""
    scores, names = np.array([2.0, 1.0, 0.0]), ("cat", "dog", "fox")
    with style():
        figure = Figure(figsize=(7.2, 2.7))
        panels = figure.subplots(1, 4, width_ratios=(1.1, 1, 1, 1))
        panels[0].bar(names, scores, color=FAINT)
        panels[0].set(title="scores", ylim=(0, 2.3))
        for axes, t in zip(panels[1:], (3.0, 1.0, 0.4), strict=True):
            weights = np.exp(scores / t)
            shares = weights / weights.sum()
            axes.bar(names, shares, color=[GOOD, *[BAND] * 2])
            axes.set(title=f"temperature {t:g}", ylim=(0, 1.15), yticks=[0, 0.5, 1])
            for place, share in enumerate(shares):
                axes.text(place, share + 0.02, f"{100 * share:.0f} %", ha="center", fontsize=9)
        for axes in panels:
            axes.grid(visible=False, axis="x")
        save(figure, "temperature", "The same scores as probabilities at three temperatures")


def honesty() -> None:
    """Accuracy over confidence of two-class networks whose scores are k times too large: k = 0.4, 1 and 2.5."""
    confidence = np.linspace(0.5, 1 - 1e-6, 81)
    stated = np.log(confidence / (1 - confidence))
    cases = {"over-confident\nscores too large": 2.5, "calibrated": 1.0, "under-confident\nscores too small": 0.4}
    with style():
        figure = Figure(figsize=(7.2, 2.8))
        for axes, (name, k) in zip(figure.subplots(1, 3, sharey=True), cases.items(), strict=True):
            truth = 1 / (1 + np.exp(-stated / k))
            axes.fill_between(confidence, confidence, truth, color=BAD, alpha=0.2, linewidth=0)
            axes.plot([0.5, 1], [0.5, 1], color=INK, linewidth=1, linestyle="--")
            axes.plot(confidence, truth, color=GOOD)
            axes.set(
                title=f"{name}\nT* = {k:g}", xlabel="what it says", xlim=(0.5, 1), ylim=(0.48, 1.02), aspect="equal"
            )
            axes.set_xticks([0.5, 0.75, 1], ["50 %", "75 %", "100 %"])
            axes.set_yticks([0.5, 0.75, 1], ["50 %", "75 %", "100 %"])
            axes.title.set_fontsize(9)
        figure.axes[0].set_ylabel("how often it is right")
        save(figure, "honesty", "How often a network is right, over how sure it says it is")


def loop() -> None:
    """The feedback L <- L / T* as four boxes and the way round."""
    boxes = {
        (0.0, 0.6): ("1  train one epoch", "no slope above L,\nby construction"),
        (0.6, 0.6): ("2  measure T*", "on data held out: which T makes\nthe probabilities honest?"),
        (0.6, 0.0): ("3  move L", "T* > 1: boasts, so lower L\nT* < 1: too shy, so raise L"),
        (0.0, 0.0): ("4  T* = 1: done", "honest as it is, and L is known:\nradius = lead / slope"),
    }
    with style():
        figure = Figure(figsize=(7.2, 3.0))
        axes = figure.subplots()
        axes.set(xlim=(-0.02, 1.02), ylim=(-0.03, 1.03))
        axes.set_axis_off()
        for (x, y), (title, text) in boxes.items():
            done = title.startswith("4")
            edge = SERIES[2] if done else GOOD
            axes.add_patch(
                FancyBboxPatch((x, y), 0.4, 0.4, "round,pad=0,rounding_size=0.03", fc="none", ec=edge, lw=1.6)
            )
            axes.text(x + 0.2, y + 0.3, title, ha="center", va="center", weight="bold")
            axes.text(x + 0.2, y + 0.13, text, ha="center", va="center", fontsize=9)
        ways = [
            ((0.41, 0.8), (0.59, 0.8), ""),
            ((0.8, 0.59), (0.8, 0.41), ""),
            ((0.59, 0.2), (0.41, 0.2), "nothing left\nto mend"),
        ]
        for start, stop, text in ways:
            axes.add_patch(FancyArrowPatch(start, stop, arrowstyle="-|>", mutation_scale=14, color=INK))
            axes.text((start[0] + stop[0]) / 2, start[1] + 0.03, text, ha="center", va="bottom", fontsize=8)
        back = FancyArrowPatch((0.63, 0.41), (0.37, 0.59), arrowstyle="-|>", mutation_scale=14, color=BAD)
        axes.add_patch(back)
        axes.text(0.5, 0.53, "  L / T*", ha="left", va="bottom", color=BAD, weight="bold")
        save(figure, "loop", "Train, measure the temperature, move the slope bound, until nothing is left to mend")


if __name__ == "__main__":
    slope()
    temperature()
    honesty()
    loop()
