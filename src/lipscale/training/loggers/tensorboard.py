"""TensorBoard: a curve for every number of the history, the test's metrics and the settings, in RUN/tensorboard."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lipscale.training.loggers.logger import Adapter, numbers


class TensorBoard(Adapter):
    """Writes FOLDER/tensorboard; `tensorboard --logdir runs` shows all runs."""

    package = "tensorboard"

    def open(self, folder: Path, settings: Mapping[str, Any]) -> int:
        """Another file of the same log: what a killed process left half written is no matter."""
        from torch.utils.tensorboard import SummaryWriter

        place = folder / "tensorboard"
        written = _epochs_in(place)
        self.settings = settings
        self.writer: Any = SummaryWriter(place)
        return written

    def add(self, values: Mapping[str, float]) -> None:
        """Add numbers, on the disk before the next epoch begins."""
        for name, value in values.items():
            self.writer.add_scalar(name, value, self.last)
        self.writer.flush()

    def end(self, results: Mapping[str, Any]) -> None:
        """Add the results, and with the settings for the tab HPARAMS, where runs are compared."""
        from torch.utils.tensorboard.summary import hparams

        found = numbers(results, "test/")
        self.add(found)
        plain = {name: v if isinstance(v, bool | int | float) else str(v) for name, v in self.settings.items()}
        for summary in hparams(plain, found):
            self.writer.file_writer.add_summary(summary)
        self.writer.close()

    def failed(self, error: BaseException) -> None:
        """Close the log."""
        self.writer.close()


def _epochs_in(place: Path) -> int:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    if not place.is_dir():
        return 0
    log = EventAccumulator(str(place)).Reload()
    return max((event.step for event in log.Scalars("loss")), default=0) if "loss" in log.Tags()["scalars"] else 0
