"""Draw the pictures that small networks make of two moons: python docs/figures/moons.py (some 40 CPU-seconds).

Two half-moons with so much noise that no classifier is right in more than nine cases of ten: an honest network must
say so. One LiST run a margin offset. Beside its unconstrained twin LiST stands on 5,000 images of Fashion-MNIST
(`lipscale data get fashion-mnist`): in the plane there is nothing to learn by heart, and the twin is as honest.
"""

import math
from functools import cache

import numpy as np
import torch
from look import save
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle
from sklearn.datasets import make_moons
from torch import Tensor, nn

import lipscale
from lipscale import models
from lipscale.data import limit, load_dataset
from lipscale.data.dataset import channel_means
from lipscale.metrics import ece, ece_floor, reliability
from lipscale.report.figures import log_axis
from lipscale.report.reliability import draw_reliability
from lipscale.report.theme import BAD, FAINT, GOOD, INK, SERIES, style

OFFSETS, EPSILON, EPOCHS = (0.0, 0.5, 1.0, 2.0, 3.0), 0.25, 40
BOX = (-2.0, 3.0, -1.5, 2.0)


def moons(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Points (N, 2) and their moons (N,)."""
    points, labels = make_moons(count, noise=0.35, random_state=seed)
    return torch.tensor(points, dtype=torch.float32), torch.tensor(labels)


@cache
def trained(offset: float = 0.0) -> lipscale.Fit:
    """LiST on 4,000 points of the moons: three hidden layers."""
    torch.manual_seed(0)
    return lipscale.fit(models.mlp(2, 2, 64), moons(4000, 0), epochs=EPOCHS, offset=offset, progress=False)


def logits(net: nn.Module, points: Tensor) -> Tensor:
    """(N, 2), of a network in evaluation mode."""
    with torch.no_grad():
        return net(points)


def draw_map(axes: Axes, count: int) -> None:
    """Confidence as colour, some points, and around each the circle in which nothing changes the answer."""
    net = trained().net
    x, y = np.meshgrid(np.linspace(*BOX[:2], 51), np.linspace(*BOX[2:], 36))
    grid = torch.tensor(np.stack([x.ravel(), y.ravel()], 1), dtype=torch.float32)
    share = torch.softmax(logits(net, grid), 1)[:, 1].reshape(x.shape).numpy()
    for levels, hue in (((0, 0.05, 0.2, 0.35, 0.5), GOOD), ((1, 0.95, 0.8, 0.65, 0.5), BAD)):
        for level, edge in zip(levels[1:], levels[:-1], strict=True):
            low, high = sorted((level, edge))
            axes.contourf(x, y, share, levels=[low, high], colors=[hue], alpha=0.08 + 0.5 * abs(edge - 0.5))
    axes.contour(x, y, share, levels=[0.5], colors=[INK], linewidths=1.2)
    points, labels = moons(count, 3)
    radii = lipscale.certify(net, points).radius()
    for point, label, radius in zip(points.tolist(), labels.tolist(), radii.tolist(), strict=True):
        hue = BAD if label else GOOD
        axes.plot(*point, "o", color=hue, markersize=4, markeredgecolor=INK, markeredgewidth=0.5)
        axes.add_patch(Circle(point, radius, fill=False, edgecolor=INK, linewidth=0.9))
    axes.set(xlim=(-1.6, 2.6), ylim=(-1.3, 1.8), aspect="equal", xticks=[], yticks=[])
    axes.grid(visible=False)
    for side in axes.spines.values():
        side.set_visible(False)


def draw_dynamics(above: Axes, below: Axes) -> None:
    """L and T* over the epochs."""
    history = trained().history
    constants = [epoch.lipschitz for epoch in history]
    steered = [(i, epoch.temperature) for i, epoch in enumerate(history, 1) if epoch.temperature]
    above.plot(range(1, len(history) + 1), constants, color=GOOD)
    below.plot(*zip(*steered, strict=True), color=BAD)
    below.axhline(1, color=INK, linewidth=1, linestyle="--")
    log_axis(above, "y", constants)
    log_axis(below, "y", [1.0, *(t for _, t in steered if t < math.inf)])
    above.set_ylabel("slope bound L")
    below.set(ylabel="T*", xlabel="epoch")


def draw_honesty(axes: Axes, net: nn.Module, data: tuple[Tensor, Tensor], name: str) -> None:
    """The reliability diagram on new samples."""
    inputs, labels = data
    answers = logits(net, inputs).double()
    draw_reliability(axes, reliability(answers, labels, 15), ece_floor(answers, labels, 15))
    right = float((answers.argmax(1) == labels).double().mean())
    axes.set(xlim=(0.5, 1), ylim=(0.4, 1), xlabel="what it says")
    axes.set_title(f"{name}\nright {100 * right:.1f} %, ECE {100 * ece(answers, labels):.1f} points", fontsize=9)


def opening() -> None:
    """The picture that the README opens with: a map with radii, honesty, and how L is found."""
    with style():
        figure = Figure(figsize=(9.6, 3.2))
        grid = figure.add_gridspec(2, 3, width_ratios=(1.6, 1, 1))
        place, honest = figure.add_subplot(grid[:, 0]), figure.add_subplot(grid[:, 1])
        draw_map(place, 14)
        place.set_title("No step within a circle changes the answer", fontsize=10)
        draw_honesty(honest, trained().net, moons(10_000, 1), "")
        honest.set(title="It is as often right as it says", ylabel="how often it is right")
        honest.title.set_fontsize(10)
        above = figure.add_subplot(grid[0, 2])
        below = figure.add_subplot(grid[1, 2], sharex=above)
        draw_dynamics(above, below)
        above.set_title("Calibration finds the slope L", fontsize=10)
        above.tick_params(labelbottom=False)
        save(figure, "opening", "lipscale on two moons: certified circles, honest probabilities, and how L is found")


def radius() -> None:
    """The map alone, with more circles."""
    with style():
        figure = Figure(figsize=(6.4, 4.75))
        draw_map(figure.subplots(), 22)
        save(figure, "radius", "Two moons: the answer, how sure it is, and the circle in which it cannot change")


def dynamics() -> None:
    """L and T* alone."""
    with style():
        figure = Figure(figsize=(5.6, 3.6))
        draw_dynamics(*figure.subplots(2, 1, sharex=True))
        save(figure, "dynamics", "The slope bound L and the temperature T* over the epochs")


def twins() -> None:
    """The reliability diagrams of the unconstrained twin and of LiST: 5,000 images to learn from, 10,000 new ones."""
    data = limit(load_dataset("fashion-mnist"), 5000, seed=0)
    with style():
        figure = Figure(figsize=(6.8, 3.5))
        panels = figure.subplots(1, 2, sharey=True)
        for axes, (method, name) in zip(panels, (("standard", "trained as usual"), ("list", "lipscale")), strict=True):
            torch.manual_seed(0)
            parts = models.LIPSCHITZ if method == "list" else models.UNCONSTRAINED
            net = models.mlp(10, data.input_shape, 128, mean=channel_means(data.train), parts=parts)
            lipscale.fit(net, (data.train.inputs, data.train.labels), epochs=20, method=method, progress=False)
            draw_honesty(axes, net, (data.test.inputs, data.test.labels.long()), name)
            axes.set(xlim=(0.2, 1), ylim=(0, 1))
        panels[0].set_ylabel("how often it is right")
        panels[1].set_ylabel("")
        save(figure, "twins", "Reliability of a network trained as usual and of lipscale on Fashion-MNIST")


def front() -> None:
    """Accuracy, certified accuracy and ECE over the margin offset xi."""
    points, labels = moons(10_000, 1)
    found = []
    for offset in OFFSETS:
        certificate = lipscale.certify(trained(offset=offset).net, points)
        kept = certificate.accuracy(labels, [0, EPSILON])
        found.append((*kept.values(), ece(certificate.logits, labels), trained(offset=offset).lipschitz))
    accuracy, certified, errors, constants = zip(*found, strict=True)
    with style():
        figure = Figure(figsize=(7.2, 3.2))
        left, right = figure.subplots(1, 2)
        left.plot(certified, accuracy, "o-", color=GOOD)
        for x, y, offset, constant in zip(certified, accuracy, OFFSETS, constants, strict=True):
            left.annotate(f"ξ = {offset:g}, L = {constant:.2g}", (x, y), (6, 4), textcoords="offset points", fontsize=8)
        left.set(xlabel=f"certified accuracy at {EPSILON:g}", ylabel="accuracy")
        left.margins(x=0.35, y=0.15)
        right.plot(OFFSETS, errors, "o-", color=BAD, label="ECE")
        floor = ece_floor(certificate.logits, labels, 15)
        right.axhspan(0, floor.upper, color=SERIES[2], alpha=0.15, linewidth=0, label="a calibrated model, 95 %")
        right.set(xlabel="offset ξ", ylabel="calibration error (ECE)", ylim=(0, 1.3 * max(*errors, floor.upper)))
        right.legend()
        right.tick_params(colors=FAINT, labelcolor=INK)
        save(figure, "front", "The offset trades accuracy for certified accuracy while probabilities stay honest")


if __name__ == "__main__":
    torch.set_num_threads(1)  # the matrices are too small to share
    opening()
    radius()
    dynamics()
    twins()
    front()
