"""Weights & Biases: a run in RUN/wandb that stays on this machine until `wandb sync`."""

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lipscale.training.epoch import Epoch
from lipscale.training.loggers.logger import Adapter, numbers


class WandB(Adapter):
    """Writes FOLDER/wandb/offline-run-DATE-ID, of the project `lipscale`; online where $WANDB_MODE says so."""

    package = "wandb"

    def start(self, folder: Path | None, settings: Mapping[str, Any], past: Sequence[Epoch]) -> None:
        """As any adapter; then drop what earlier sittings left offline: this one has all of it, and more."""
        super().start(folder, settings, past)
        for old in self.before:
            if old.name.startswith("offline-") and not any(old.glob("*.synced")):
                shutil.rmtree(old)

    def open(self, folder: Path, settings: Mapping[str, Any]) -> int:
        """A run under the id that this folder's has; a server knows which epochs it has, offline they are none."""
        import wandb

        folder.mkdir(parents=True, exist_ok=True)
        self.before = sorted((folder / "wandb").glob("*run-*-*"))
        mode: Any = os.environ.get("WANDB_MODE", "offline")
        self.run: Any = wandb.init(
            project="lipscale",
            name=folder.name,
            id=self.before[-1].name.rpartition("-")[2] if self.before else None,
            dir=folder,
            config=dict(settings),
            resume="allow",
            mode=mode,
            settings=wandb.Settings(console="off", silent=True, disable_git=True),
        )
        return int(self.run.step) - 1  # the next one counts from 0

    def add(self, values: Mapping[str, float]) -> None:
        """Add numbers of an epoch."""
        self.run.log(dict(values), step=self.last, commit=True)

    def end(self, results: Mapping[str, Any]) -> None:
        """Add the results to the summary, and that the run is finished."""
        self.run.summary.update(numbers(results, "test/"))
        self.run.finish()

    def failed(self, error: BaseException) -> None:
        """Close the run as one that did not finish."""
        self.run.finish(exit_code=1)
