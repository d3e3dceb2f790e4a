"""The page: one self-contained HTML file, with no network and no server, and the figures as files."""

import base64
import io
import math
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jinja2 import Environment
from markupsafe import Markup
from PIL import Image
from torch import Tensor

from lipscale._files import write_atomically
from lipscale.errors import UserError
from lipscale.report.figures import CURVE_POINTS, Drawn, curve, draw_all
from lipscale.report.record import Answers, Facts, Shown, gather
from lipscale.report.tables import attack_rows, number_rows, shown_settings, tiles
from lipscale.report.theme import as_svg, style
from lipscale.report.verdict import has_certificate, verdict

LARGEST_PICTURE = 256
FORMATS = ("png", "pdf")
BADGES = {True: "not distinguishable from calibrated", False: "not calibrated", None: ""}  # None: it was not measured


def write_report(folders: Sequence[Path], out: Path | None = None, *, data_dir: Path | None = None) -> Path:
    """Write the report of one or several runs; the figures go to a folder beside it."""
    runs = gather(folders, data_dir=data_dir)
    if out is None:
        out = folders[0] / "report.html" if len(folders) == 1 else Path("report.html")
    if out.is_dir():
        raise UserError(f"{out} is a folder; give a file, such as --out {out / 'report.html'}")
    if out.suffix.lower() not in (".html", ".htm"):
        raise UserError(f"--out: a report is a page, such as {out.with_suffix('.html')}, got {out}")
    drawn = draw_all(runs)
    page = render(runs, drawn)
    beside = figures_folder(folders, out)
    for figure in drawn:
        save_figure(figure, beside)
    write_atomically(out, page.encode())
    return out


def save_figure(drawn: Drawn, folder: Path) -> list[Path]:
    """Write a figure in every format, and say where."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for kind in FORMATS:
        data = io.BytesIO()
        with style():
            drawn.figure.savefig(data, format=kind, metadata={"CreationDate": None} if kind == "pdf" else None)
        paths.append(folder / f"{drawn.name}.{kind}")
        write_atomically(paths[-1], data.getvalue())
    return paths


def figures_folder(folders: Sequence[Path], out: Path) -> Path:
    """RUN/figures for a run's own report, else a folder named after the page."""
    return folders[0] / "figures" if out.parent == folders[0] else out.with_name(f"{out.stem}-figures")


def render(runs: Sequence[Facts], drawn: Sequence[Drawn]) -> str:
    """The page as text."""
    template, css, js = ((files("lipscale.report") / f"page.{kind}").read_text() for kind in ("html", "css", "js"))
    several = len(runs) > 1
    return (
        Environment(autoescape=True)
        .from_string(template)
        .render(
            title="lipscale: " + ", ".join(run.name for run in runs),
            version=version("lipscale"),
            written=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
            css=Markup(css),
            js=Markup(js),
            runs=[_run(run) for run in runs],
            tiles=tiles(runs[0]) if not several else [],
            numbers=number_rows(runs),
            robustness=attack_rows(runs),
            figures=[
                {
                    "title": figure.title,
                    "words": figure.words,
                    "name": figure.name,
                    "svg": as_svg(figure.figure, salt=figure.name),
                    "wide": several and figure.name == "reliability",
                }
                for figure in sorted(
                    drawn, key=lambda figure: several and figure.name == "reliability"
                )  # wide ones last
            ],
            missing=[f"{run.name}: {sentence}" if several else sentence for run in runs for sentence in run.missing],
            explorer=_explorer(runs),
        )
    )


def _run(run: Facts) -> dict[str, Any]:
    calibrated = run.metrics.get("calibrated")
    return {
        "name": run.name,
        "verdict": verdict(run.metrics, run.unit, run.robustness),
        "calibrated": calibrated,
        "certified": has_certificate(run.metrics),
        "badge": BADGES[calibrated],
        "settings": shown_settings(run),
        "hardest": [_shown(sample) for sample in run.hardest],
        "easiest": [_shown(sample) for sample in run.easiest],
    }


def _shown(sample: Shown) -> dict[str, Any]:
    return {
        "index": sample.index,
        "truth": sample.truth,
        "predicted": sample.predicted,
        "probability": f"{sample.probability:.3f}",
        "radius": f"{sample.radius:.4g}",
        "picture": None if sample.image is None else _picture(sample.image),
    }


def _picture(image: Tensor) -> str:
    """A PNG as a data URL; small pictures are magnified pixel by pixel, by the browser."""
    pixels = (image[:3] * 255).round().clamp(0, 255).byte().movedim(0, -1).cpu().numpy()
    picture = Image.fromarray(np.squeeze(pixels[..., :1], -1) if pixels.shape[-1] != 3 else pixels)
    if max(picture.size) > LARGEST_PICTURE:
        picture.thumbnail((LARGEST_PICTURE, LARGEST_PICTURE))
    data = io.BytesIO()
    picture.save(data, "PNG")
    return "data:image/png;base64," + base64.b64encode(data.getvalue()).decode()


def _explorer(runs: Sequence[Facts]) -> dict[str, Any] | None:
    """The curves behind the sliders: a few hundred points each, whatever the size of the test set."""
    known = [(run, run.answers) for run in runs if run.answers is not None]
    if not known:
        return None
    shown, largest = [], 0.0
    for run, answers in known:
        certified = None
        if has_certificate(run.metrics):
            eps, share = curve(answers)
            certified, largest = {"x": _short(eps), "y": _short(share)}, max(largest, *eps)
        threshold, coverage, accuracy = selective(answers)
        shown.append(
            {
                "name": run.name,
                "place": run.place,
                "certified": certified,
                "coverage": {"x": _short(threshold), "y": _short(coverage)},
                "accuracy": {"x": _short(threshold), "y": _short(accuracy)},
            }
        )
    return {"runs": shown, "largest": _round_up(largest) if largest else None}  # none: nothing is certified


def _round_up(value: float) -> float:
    """The next number whose quarters are short: 0.808 -> 1, 13 -> 16."""
    size = 10.0 ** math.floor(math.log10(value)) if value > 0 else 1.0
    return next(step * size for step in (1, 1.2, 1.6, 2, 2.4, 3.2, 4, 6, 8, 10) if step * size >= value)


def selective(answers: Answers) -> tuple[list[float], list[float], list[float]]:
    """Thresholds on the confidence, the share of samples at or above each, and the accuracy among those."""
    confidence, order = answers.confidence.sort()
    right = answers.right[order].double()
    n = len(confidence)
    keep = torch.linspace(0, n - 1, min(CURVE_POINTS, n)).round().long()
    left = torch.arange(n, 0, -1, dtype=torch.float64)  # samples at or above the i-th smallest confidence
    accuracy = right.flip(0).cumsum(0).flip(0) / left
    return confidence[keep].tolist(), (left / n)[keep].tolist(), accuracy[keep].tolist()


def _short(values: Sequence[float]) -> list[float]:
    return [float(f"{value:.5g}") for value in values]
