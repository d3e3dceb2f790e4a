"""What a user may write, checked by mypy --strict against the installed package, and run (scripts/check-wheel)."""

from collections.abc import Mapping
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import torch
from torch import nn

import lipscale
from lipscale import LipschitzScheduler, Settings
from lipscale.errors import StoppedError
from lipscale.sklearn import LipschitzClassifier
from lipscale.training import Epoch
from lipscale.training.loggers import Logger, TensorBoard


class Losses(Logger):
    """A logger of one's own."""

    def __init__(self) -> None:
        self.losses: list[float] = []

    def epoch(self, number: int, epoch: Epoch) -> None:
        """Keep a number."""
        self.losses.append(epoch.loss)


class Silent:
    """One that is none of ours, and has the methods."""

    def start(self, folder: Path | None, settings: Mapping[str, Any], past: object) -> None:
        """Nothing."""

    def epoch(self, number: int, epoch: Epoch) -> None:
        """Nothing."""

    def end(self, results: Mapping[str, Any]) -> None:
        """Nothing."""

    def failed(self, error: BaseException) -> None:
        """Nothing."""


def own_network() -> float:
    """fit, certify, export."""
    inputs, labels = torch.rand(64, 4), torch.arange(64) % 2
    net: nn.Module = lipscale.models.mlp(num_classes=2, input_shape=4, width=8)
    losses = Losses()
    data = torch.utils.data.TensorDataset(inputs, labels)
    result: lipscale.Fit = lipscale.fit(net, data, epochs=2, progress=False, loggers=[losses, Silent()])
    certificate: lipscale.Certificate = lipscale.certify(result.net, inputs)
    radii: torch.Tensor = certificate.radius()
    bound: float = lipscale.lipschitz_bound(lipscale.export_plain(net), inputs[:1].shape[1:])
    constant: float = lipscale.get_lipschitz(net)
    with lipscale.evaluation_mode(net):
        temperature: float = lipscale.fit_temperature(net(inputs), labels)
    return float(radii.min()) + bound + constant + temperature + losses.losses[-1]


def own_loop(net: nn.Module, logits: torch.Tensor, labels: torch.Tensor) -> float:
    """The scheduler and the loss."""
    scheduler = LipschitzScheduler(net, lipschitz=1.0)
    scheduler.step(logits, labels)
    lipscale.set_lipschitz(net, 2.0)
    loss: torch.Tensor = lipscale.offset_cross_entropy(logits, labels, offset=1.0)
    return float(loss)


def runs(folder: Path) -> str:
    """A run, and back."""
    settings = lipscale.replace(Settings(data="digits", limit=100, epochs=1, out=folder), offset=0.5)
    try:
        run: lipscale.Run = lipscale.train(settings, progress=False, should_stop=lambda: False)
    except (lipscale.UserError, StoppedError) as error:
        return str(error)
    accuracy: float = lipscale.load(run.folder).metrics.accuracy
    return f"{accuracy} by {lipscale.__version__}"


if __name__ == "__main__":
    print(own_network(), runs(Path(mkdtemp()) / "run"), LipschitzClassifier(epochs=2), TensorBoard.package)
