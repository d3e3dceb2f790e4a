"""The families of 1-Lipschitz layers, each in a file of its own: what `layers` may name."""

from lipscale.layers.families.aoc import AOC, BCOP
from lipscale.layers.families.aol import AOL
from lipscale.layers.families.bjorck import BJORCK
from lipscale.layers.families.bro import BRO
from lipscale.layers.families.cayley import CAYLEY
from lipscale.layers.families.cpl import CPL
from lipscale.layers.families.family import Family
from lipscale.layers.families.lipnext import LIPNEXT
from lipscale.layers.families.lot import LOT
from lipscale.layers.families.sll import SLL
from lipscale.layers.families.soc import SOC
from lipscale.layers.families.spectral import SPECTRAL

ALL = (SPECTRAL, BJORCK, CAYLEY, BCOP, AOC, SOC, LOT, AOL, SLL, CPL, BRO, LIPNEXT)
FAMILIES = {family.name: family for family in ALL}

__all__ = ["FAMILIES", "Family"]
