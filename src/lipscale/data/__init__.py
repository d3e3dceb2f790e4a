"""Real data sets by name, and users' pictures, tables and arrays by path: what users call, and what stages share."""

from lipscale.data.dataset import (
    PIXELS,
    Column,
    Dataset,
    Preprocessing,
    Samples,
    as_input,
    limit,
    require_turns,
    split_calibration,
    split_conformal,
    stratified,
)
from lipscale.data.encode import prepare
from lipscale.data.labelled import read_labelled
from lipscale.data.load import load_dataset, read_dataset
from lipscale.data.registry import READERS, find_folder
from lipscale.data.stored import Stored
from lipscale.settings import DataSettings

__all__ = [
    "PIXELS",
    "READERS",
    "Column",
    "DataSettings",
    "Dataset",
    "Preprocessing",
    "Samples",
    "Stored",
    "as_input",
    "find_folder",
    "limit",
    "load_dataset",
    "prepare",
    "read_dataset",
    "read_labelled",
    "require_turns",
    "split_calibration",
    "split_conformal",
    "stratified",
]
