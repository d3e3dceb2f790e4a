"""Algorithm 1 and its checkpoints."""

from lipscale.training.algorithm import Epoch, ListTraining
from lipscale.training.checkpoint import load_tensors, load_training, save_tensors, save_training

__all__ = ["Epoch", "ListTraining", "load_tensors", "load_training", "save_tensors", "save_training"]
