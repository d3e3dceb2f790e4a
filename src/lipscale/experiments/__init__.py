"""Recipes for the paper's runs, and what a run will cost."""

from lipscale.experiments.cost import Cost, estimate, require_memory
from lipscale.experiments.recipes import RECIPES, fixed_cifar10, fixed_cifar100, list_cifar10, list_cifar100

__all__ = [
    "RECIPES",
    "Cost",
    "estimate",
    "fixed_cifar10",
    "fixed_cifar100",
    "list_cifar10",
    "list_cifar100",
    "require_memory",
]
