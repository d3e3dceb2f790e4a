"""Experiment trackers beside a training: the protocol, and adapters for TensorBoard, MLflow and Weights & Biases.

logger       what a logger is told, and how none of them can end a training
tensorboard  RUN/tensorboard
mlflow       a database beside the runs
wandb        RUN/wandb, offline
"""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from lipscale.errors import UserError
from lipscale.training.loggers.logger import Logger, watched
from lipscale.training.loggers.mlflow import MLflow
from lipscale.training.loggers.tensorboard import TensorBoard
from lipscale.training.loggers.wandb import WandB

__all__ = ["Logger", "MLflow", "TensorBoard", "WandB", "kept_loggers", "logger_list", "watched"]

log = logging.getLogger("lipscale")
ADAPTERS: dict[str, Callable[[], Logger]] = {"tensorboard": TensorBoard, "mlflow": MLflow, "wandb": WandB}
EVENTS = ("start", "epoch", "end", "failed")


def logger_list(loggers: Sequence[str | Logger]) -> list[Logger]:
    """Loggers by name or as objects of one's own, checked before anything is trained."""
    if isinstance(loggers, str):
        raise UserError(f"expected a list of `loggers`, got {loggers!r}: write [{loggers!r}]")
    return [_named(each) if isinstance(each, str) else _checked(each) for each in dict.fromkeys(loggers)]


def kept_loggers(folder: Path, given: Sequence[Logger]) -> list[Logger]:
    """Those given, and those that a run was begun with and that nobody gives again: each has its folder in the run."""
    found = list(given)
    for name in (name for name in ADAPTERS if (folder / name).is_dir()):
        try:
            adapter = _named(name)
        except UserError as error:  # perhaps another machine
            log.warning("%s; the run goes on without it", error)
            continue
        if type(adapter) not in map(type, given):
            found.append(adapter)
    return found


def _named(name: str) -> Logger:
    if name not in ADAPTERS:
        raise UserError(f"unknown logger {name!r}; known: {', '.join(ADAPTERS)}")
    return ADAPTERS[name]()


def _checked(logger: Logger) -> Logger:
    missing = [event for event in EVENTS if not callable(getattr(logger, event, None))]
    if missing or isinstance(logger, type):
        problem = f"a class, not an object: write {logger.__name__}()" if isinstance(logger, type) else repr(logger)
        raise UserError(f"expected a logger with the methods {', '.join(EVENTS)}, got {problem}")
    return logger
