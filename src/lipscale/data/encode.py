"""Raw inputs -> network inputs: tables are standardised and their categories spread out, by what training measured."""

import logging
import math
from dataclasses import replace

import torch
from torch import Tensor

from lipscale.data.dataset import DEVIATIONS, Column, Dataset, Preprocessing, channel_means, listed
from lipscale.data.memory import require_memory
from lipscale.errors import UserError

log = logging.getLogger("lipscale")

MIXED = f"{DEVIATIONS} (a change of category counts 1)"
# one category on: two categories are then a distance of 1 apart, about what a typical number moves
CATEGORY_ON = math.sqrt(0.5)
MISSING_ON = 1.0  # a number that goes missing, or comes back, has moved by at least this
STAND_IN = "the training mean stands in for a number, no category for a category"
ROUNDING = 2.0**-23  # twice the relative error of a number that becomes float32
CHUNK = 1 << 16


def prepare(dataset: Dataset, done: Preprocessing | None = None) -> tuple[Dataset, Preprocessing]:
    """The set ready for the network, and what was done to it: what a run did, or what the training part asks for."""
    done = done or _measure(dataset)
    shape = (len(done.columns),) if done.columns else done.input_shape
    if dataset.input_shape != shape:
        raise UserError(f"the run takes inputs of shape {shape}, {dataset.name} has {dataset.input_shape}")
    if len(shape) > 1:
        return dataset, done
    train, test = (replace(part, inputs=encode(part.inputs[:], done)) for part in (dataset.train, dataset.test))
    return replace(dataset, train=train, test=test), done


def _measure(dataset: Dataset) -> Preprocessing:
    """The preprocessing that the training part asks for."""
    if len(dataset.input_shape) > 1:
        return Preprocessing(dataset.input_shape, channel_means(dataset.train), fit=dataset.fit)
    columns = dataset.columns or tuple(Column(str(i)) for i in range(dataset.input_shape[0]))
    inputs = dataset.train.inputs[:]
    counts = inputs.isnan().sum(0).tolist()
    lacking = [f"{column.name!r} ({count})" for column, count in zip(columns, counts, strict=True) if count]
    if lacking:
        log.warning(f"missing values in {listed(lacking)}: {STAND_IN}; one more input tells of missing numbers")
    columns = tuple(
        column if column.categories else replace(column, missing=count > 0)
        for column, count in zip(columns, counts, strict=True)
    )
    measured = [
        (0.0, 1.0, (0.0, len(column.categories) - 1.0))
        if column.categories
        else _moments(values, f"column {column.name!r} of {dataset.name}")
        for column, values in zip(columns, inputs.unbind(1), strict=True)
    ]
    means, stds, ranges = zip(*measured, strict=True)
    features = sum(column.features for column in columns)
    unit = MIXED if any(column.categories for column in columns) else DEVIATIONS
    named = columns if dataset.columns else ()
    return Preprocessing((features,), (0.0,) * features, unit, means, stds, named, ranges)


def _moments(values: Tensor, name: str) -> tuple[float, float, tuple[float, float]]:
    """Mean, standard deviation and range of the numbers that are not missing."""
    present = values[~values.isnan()].double()
    if len(present) == 0:
        raise UserError(f"{name} has no value in the training part; leave it out (`drop`)")
    mean, std = float(present.mean()), float(present.std(correction=0))
    if not math.isfinite(mean) or not math.isfinite(std):
        raise UserError(f"{name} holds numbers too large to standardise, up to {float(present.abs().max()):g}")
    ends = float(present.min()), float(present.max())
    return mean, std if std > 0 else 1.0, ends  # a constant column carries nothing and stays at zero


def encode(rows: Tensor, done: Preprocessing) -> Tensor:
    """Raw rows (N, columns) as network inputs (N, F), in float32.

    A number becomes (x - mean) / std, in units of the training column's standard deviation. A category becomes a
    block of zeros with sqrt(1/2) at its place. What is missing is zero throughout: the mean, or no category; where the
    training part had missing numbers in a column, one more input is 1 for them and else 0.
    """
    require_memory(4 * len(rows) * done.input_shape[0], f"a table of {len(rows)} rows, its categories spread out,")
    encoded = torch.zeros(len(rows), done.input_shape[0])
    mean, std = torch.tensor([done.column_mean, done.column_std], dtype=torch.float64)
    columns = done.columns or tuple(Column("") for _ in range(rows.shape[1]))
    numbers = [i for i, column in enumerate(columns) if not column.categories]
    starts = torch.tensor([0, *(column.features for column in columns)]).cumsum(0)[:-1]
    for first in range(0, len(rows), CHUNK):  # float64 a little at a time
        chunk, target = rows[first : first + CHUNK].double(), encoded[first : first + CHUNK]
        scaled = (chunk[:, numbers] - mean[numbers]) / std[numbers]
        target[:, starts[numbers]] = scaled.nan_to_num(nan=0.0, posinf=math.inf, neginf=-math.inf).float()
        for i, column in enumerate(columns):
            if column.missing:
                target[:, starts[i] + 1] = MISSING_ON * chunk[:, i].isnan()
            if column.categories:
                known = (~chunk[:, i].isnan()).nonzero().squeeze(1)
                target[known, starts[i] + chunk[known, i].long()] = CATEGORY_ON
    if not encoded.isfinite().all():
        row, feature = (~encoded.isfinite()).nonzero()[0].tolist()
        raise UserError(f"row {row} is too far from the training data: feature {feature} is not finite")
    return encoded


def require_numbers(where: str, done: Preprocessing) -> None:
    """Refuse an array in place of a table that has more than numbers."""
    if any(column.categories or column.dates for column in done.columns):
        way_out = "give a .csv or .parquet table or a DataFrame with its columns"
        raise UserError(f"{where}: the run's table has categories or dates, which are no numbers; {way_out}")


def raw_radii(radii: Tensor, raw: Tensor, done: Preprocessing) -> Tensor:
    """How far each number of raw rows may move by itself, (N, columns) in its own units, within certified radii (N,).

    A number x is one input z = (x - mean) / std of the network, in float32: a move by d is one of at most
    (|d| / std) (1 + u) + 2 u |z| there, with u the error of rounding. A missing number or a category has no answer
    (NaN).
    """
    mean, std = torch.tensor([done.column_mean, done.column_std], dtype=torch.float64)
    scaled = ((raw.double() - mean) / std).abs()
    moves = std * (radii.double().unsqueeze(1) * (1 - ROUNDING) - ROUNDING * scaled).clamp(min=0)
    moves[:, [i for i, column in enumerate(done.columns) if column.categories]] = math.nan
    return moves


def outside(raw: Tensor, done: Preprocessing) -> Tensor:
    """Which numbers of raw rows lie beyond the range that training saw by more than its width, (N, columns)."""
    if not done.column_range:  # a run of an earlier version does not know
        return torch.zeros(raw.shape, dtype=torch.bool)
    low, high = torch.tensor(done.column_range, dtype=torch.float64).unbind(1)
    return (raw < low - (high - low)) | (raw > high + (high - low))  # never so for NaN
