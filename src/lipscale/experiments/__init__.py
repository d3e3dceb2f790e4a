"""Recipes for the paper's runs."""

from lipscale.experiments.recipes import RECIPES, fixed_cifar10, fixed_cifar100, list_cifar10, list_cifar100

__all__ = ["RECIPES", "fixed_cifar10", "fixed_cifar100", "list_cifar10", "list_cifar100"]
