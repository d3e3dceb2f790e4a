"""Algorithm 1 as one straight loop, `fit` around it, and the parts that it is made of.

algorithm    Phase I and Phase II
epoch        step 1: one epoch of either phase
plan         the epochs of each phase, and the learning rate
batches      where batches come from
distributed  several processes that train as one
optimizer, methods, checkpoint, progress, settings
"""

from lipscale.settings import TrainingSettings
from lipscale.training.algorithm import Training, algorithm_1
from lipscale.training.checkpoint import load_training, save_training
from lipscale.training.epoch import Epoch
from lipscale.training.fitting import Fit, fit

__all__ = [
    "Epoch",
    "Fit",
    "Training",
    "TrainingSettings",
    "algorithm_1",
    "fit",
    "load_training",
    "save_training",
]
