"""The paper's runs, tables, figures and claims, and users' own sweeps."""

from lipscale.experiments.recipes import RECIPES

__all__ = ["RECIPES"]
