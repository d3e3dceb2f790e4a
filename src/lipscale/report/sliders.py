"""The curves behind the page's sliders: exact at every place of a slider, so that its words agree with the captions."""

from collections.abc import Sequence
from typing import Any

import torch
from matplotlib.axes import Axes

from lipscale.report.figures import SURE
from lipscale.report.record import RunRecord
from lipscale.report.reliability import with_answers
from lipscale.report.theme import Drawn

STEPS = 1000


def sliders(runs: Sequence[RunRecord], drawn: Sequence[Drawn]) -> dict[str, dict[str, Any]]:
    """What the page's script reads, by the slider's name: where the figure's axes lie, and a value for each step."""
    axes = {figure.name: figure.figure.axes[0] for figure in drawn}
    found = {}
    certified = [(run, answers) for run, answers in with_answers(runs) if run.metrics.is_certified]
    if certified:
        most = float(axes["certified"].get_xlim()[1])
        curves = [_curve(run, answers.certified_at(_places(most))) for run, answers in certified]
        found["epsilon"] = {"frame": _frame(axes["certified"]), "start": _start(runs, most), "curves": curves}
    if "confidence" in axes:
        pairs = [(run, answers.selective_at(_places(1.0))) for run, answers in with_answers(runs)]
        curves = [_curve(run, values) for run, (coverage, accuracy) in pairs for values in (accuracy, coverage)]
        found["threshold"] = {"frame": _frame(axes["confidence"]), "start": round(STEPS * SURE), "curves": curves}
    return found


def _places(most: float) -> torch.Tensor:
    return most * torch.arange(STEPS + 1, dtype=torch.float64) / STEPS


def _curve(run: RunRecord, values: Sequence[float | None]) -> dict[str, Any]:
    return {"name": run.name, "index": run.index, "y": [None if v is None else float(f"{v:.6g}") for v in values]}


def _start(runs: Sequence[RunRecord], most: float) -> int:
    """The slider's first place: an epsilon of the captions that it can reach, or near the first one."""
    places = [STEPS * epsilon / most for epsilon in runs[0].settings.epsilons]
    return round(min((abs(place - round(place)) > 1e-9, i, place) for i, place in enumerate(places))[2])


def _frame(axes: Axes) -> dict[str, float]:
    """Where the axes lie in their figure as it was drawn, in points of the SVG: x of 0 and of the end, y of 0 and 1."""
    figure = axes.get_figure(root=True)
    assert figure is not None
    width, height = 72 * figure.get_size_inches()
    box, (low, high), most = axes.get_position(), axes.get_ylim(), axes.get_xlim()[1]
    up = [height * (1 - box.y0 - box.height * (value - low) / (high - low)) for value in (0, 1)]
    return {"left": width * box.x0, "right": width * box.x1, "zero": up[0], "one": up[1], "most": float(most)}
