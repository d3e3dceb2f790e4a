"""LiST in a Lightning training: a callback that moves L by the temperature of held-out data, once an epoch."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from lightning import Callback, LightningModule, Trainer
from torch import Tensor, nn

from lipscale.bounds import set_lipschitz
from lipscale.calibration import LipschitzScheduler
from lipscale.data.dataset import stacked
from lipscale.errors import UserError
from lipscale.layers import ScaledLayer, evaluation_mode


class LipschitzFeedback(Callback):
    """L <- about L / T* after every epoch (Sec. 4.1), before validation looks; in the last one L is frozen at L*.

    Every process of a distributed training reads all of the calibration data, so all find the same T* and nothing need
    be gathered. Optimizers with two sets of weights (ScheduleFree) are switched for measuring and for validation.

    Args:
        calibration: Batches (inputs, labels) that are not trained on, such as a DataLoader without shuffling. As
            the callback reads them in every process, it must not be sharded.
        network: Where the constrained network is in the module; left out, the one child that has scaled layers.
        options: Anything else that LipschitzScheduler takes: rule, lipschitz, ahead, window, tolerance.

    Example:
        >>> from lipscale.lightning import LipschitzFeedback
        >>> LipschitzFeedback(loader, lipschitz=1.0)  # doctest: +SKIP
        >>> Trainer(max_epochs=20, callbacks=[LipschitzFeedback(loader)]).fit(module, train, val)  # doctest: +SKIP
    """

    def __init__(
        self,
        calibration: Iterable[tuple[Tensor, Tensor]],
        *,
        network: Callable[[LightningModule], nn.Module] | None = None,
        **options: Any,
    ) -> None:
        self.calibration, self.network, self.options = calibration, network or _constrained, options
        self.scheduler: LipschitzScheduler | None = None
        self._saved: dict[str, Any] | None = None
        self._measured = -1  # the epoch after which L was last moved

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin at L0, or where a checkpoint was."""
        net, restored = self.network(pl_module), self._saved
        options = self.options if restored is None else {**self.options, "lipschitz": None}
        optimizer = trainer.optimizers[0] if trainer.optimizers else None
        epochs = max(trainer.max_epochs or 0, 0)
        self.scheduler = LipschitzScheduler(net, **{"optimizer": optimizer, "epochs": epochs, **options})
        if restored is not None:
            self.scheduler.load_state_dict(restored["scheduler"])
            self._measured = restored["measured"]
            set_lipschitz(net, self.scheduler.constant)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """With the weights that train."""
        _switch(trainer, "train")

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Validation sees the L that this epoch ends with; the check before training sees the first."""
        _switch(trainer, "eval")
        if not trainer.sanity_checking and trainer.state.fn == "fit" and self._is_last_batch(trainer):
            self._step(trainer, pl_module)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Back to the weights that train."""
        _switch(trainer, "train")

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Where nothing is validated in this epoch, L moves all the same."""
        if self._measured < trainer.current_epoch:
            _switch(trainer, "eval")
            self._step(trainer, pl_module)
            _switch(trainer, "train")

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """What is shipped is what was measured; a training that was stopped early has its L*, too."""
        _switch(trainer, "eval")
        if self.scheduler is not None and not self.scheduler.frozen:
            self.scheduler.freeze()

    def state_dict(self) -> dict[str, Any]:
        """Plain values: a checkpoint with it loads with weights_only."""
        if self.scheduler is None:
            return {}
        return {"scheduler": self.scheduler.state_dict(), "measured": self._measured}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from there when the fit starts."""
        self._saved = state_dict or None

    @staticmethod
    def _is_last_batch(trainer: Trainer) -> bool:
        """Whether the epoch is over: validation may come several times within it."""
        return trainer.fit_loop.epoch_loop.batch_progress.is_last_batch

    @torch.no_grad()
    def _step(self, trainer: Trainer, pl_module: LightningModule) -> None:
        scheduler, self._measured = self.scheduler, trainer.current_epoch
        if scheduler is None or scheduler.frozen:
            return
        with evaluation_mode(pl_module), torch.autocast(pl_module.device.type, enabled=False):
            found = [(pl_module(inputs.to(pl_module.device)), labels) for inputs, labels in self.calibration]
        if not found:
            raise UserError("the calibration data yield no batch: T* needs held-out samples")
        logits, labels = stacked((some.cpu(), their.cpu()) for some, their in found)
        scheduler.step(logits, labels)
        if trainer.max_epochs and trainer.current_epoch + 1 == trainer.max_epochs:
            scheduler.freeze()
        assert scheduler.last is not None
        for logger in trainer.loggers:
            told = {"lipschitz": scheduler.constant, "temperature": scheduler.last.temperature}
            logger.log_metrics(told, step=trainer.global_step)


def _constrained(module: LightningModule) -> nn.Module:
    """The child that L belongs to."""
    found = [child for child in module.children() if any(isinstance(m, ScaledLayer) for m in child.modules())]
    if len(found) != 1:
        problem = f"{type(module).__name__} has {len(found)} children with scaled layers"
        raise UserError(f"{problem}: say which one is meant, network=lambda module: module.NAME")
    return found[0]


def _switch(trainer: Trainer, mode: str) -> None:
    """Tell optimizers that have two sets of weights which ones are wanted."""
    for optimizer in trainer.optimizers:
        if hasattr(optimizer, mode):
            getattr(optimizer, mode)()
