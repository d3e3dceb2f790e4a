"""A finished run as a notebook shows it: the verdict, five numbers and its reliability diagram, as HTML."""

from html import escape

from torch import Tensor

from lipscale.metrics import reliability
from lipscale.metrics.binned import bins_for
from lipscale.runs.evaluation import Metrics
from lipscale.runs.headline import first_numbers, headline
from lipscale.training.epoch import counted

SIDE = 200  # of the diagram, in pixels
TONES = {"good": "#0a8a66", "bad": "#d2570f", "open": "#7d7f83"}  # readable on light and on dark pages
BAR, LINE = "#0072b2", "#8a8b8c"


def as_html(name: str, metrics: Metrics, logits: Tensor | None, labels: Tensor | None) -> str:
    """The run for a notebook; without its test predictions there is no diagram."""
    said = headline(metrics)
    rows = "".join(
        f"<tr><td>{escape(key)}</td><td><b>{escape(cell.value)}</b></td><td>{escape(cell.note)}</td></tr>"
        for key, cell in first_numbers(metrics).items()
    )
    picture = "" if logits is None or labels is None else diagram(logits, labels)
    return (
        f'<div><p><b>{escape(name)}</b>: <b style="color: {TONES[said.tone]}">{escape(said.text)}</b></p>'
        f'<div style="display: flex; gap: 2em; flex-wrap: wrap"><table>{rows}</table>{picture}</div></div>'
    )


def diagram(logits: Tensor, labels: Tensor) -> str:
    """Accuracy over confidence, bin by bin, as an SVG; a calibrated network's bars end on the dashed line."""
    cells = reliability(logits, labels, bins_for(len(labels)))
    width = SIDE / len(cells.count)
    bars = "".join(
        f'<rect x="{i * width:.1f}" y="{SIDE * (1 - share):.1f}" width="{width:.1f}" height="{SIDE * share:.1f}" '
        f'fill="{BAR}" fill-opacity="0.8"><title>{counted(int(count), "sample")}, {share:.3f} right</title></rect>'
        for i, (share, count) in enumerate(zip(cells.accuracy.tolist(), cells.count.tolist(), strict=True))
        if count
    )
    half = SIDE / 2
    return (
        f'<svg width="{SIDE + 40}" height="{SIDE + 40}" viewBox="-30 -10 {SIDE + 40} {SIDE + 40}" role="img" '
        f'aria-label="Reliability diagram: accuracy over confidence">{bars}'
        f'<path d="M0,0V{SIDE}H{SIDE}" fill="none" stroke="{LINE}"/>'
        f'<path d="M0,{SIDE}L{SIDE},0" stroke="{LINE}" stroke-dasharray="4 3"/>'
        f'<g fill="{LINE}" font-size="11"><text x="{half}" y="{SIDE + 22}" text-anchor="middle">confidence</text>'
        f'<text x="-8" y="{half}" text-anchor="middle" transform="rotate(-90 -8 {half})">accuracy</text></g></svg>'
    )
