"""Raw inputs -> network inputs: tables are standardised and their categories spread out, by what training measured."""

import logging
import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from lipscale.data.columns import columns_of
from lipscale.data.dataset import DEVIATIONS, FEATURE_SPACE, Column, Dataset, Preprocessing, channel_means, listed
from lipscale.data.memory import require_memory, rows_at_once
from lipscale.data.stored import Stored, written
from lipscale.errors import UserError

log = logging.getLogger("lipscale")

CATEGORIES_COUNT, TAILS_SQUEEZED = "a change of category counts 1", "long tails are squeezed"
# one category on: two categories are then a distance of 1 apart, about what a typical number moves
CATEGORY_ON = math.sqrt(0.5)
MISSING_ON = 1.0  # a number that goes missing, or comes back, has moved by at least this
STAND_IN = "the training mean (of a long tail the median) stands in for a number, no category for a category"
LONG_TAIL = 2.0  # a tail is long where the deviation is so many times what the middle half of the numbers suggests
NORMAL_QUARTILES = 1.349  # how far the quartiles of a normal distribution are apart, in standard deviations
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
    train, test = (replace(part, inputs=_encoded(part.inputs, done)) for part in (dataset.train, dataset.test))
    return replace(dataset, train=train, test=test), done


def _encoded(raw: Tensor | Stored, done: Preprocessing) -> Tensor | Stored:
    """Raw rows as network inputs; what is stored stays so, and comes by some rows at a time."""
    if isinstance(raw, Tensor):
        return encode(raw, done)
    size = rows_at_once(8 * max(raw.shape[1], done.input_shape[0]))
    chunks = (encode(chunk, done, first=i * size).numpy() for i, chunk in enumerate(raw.split(size)))
    return Stored.of(written(chunks, len(raw), done.input_shape, np.float32))


def _measure(dataset: Dataset) -> Preprocessing:
    """The preprocessing that the training part asks for."""
    if len(dataset.input_shape) > 1:
        return Preprocessing(dataset.input_shape, channel_means(dataset.train), fit=dataset.fit)
    columns = dataset.columns or tuple(Column(str(i)) for i in range(dataset.input_shape[0]))
    inputs = dataset.train.inputs
    counts = [int(values.isnan().sum()) for values in columns_of(inputs)]
    lacking = [f"{column.name!r} ({count})" for column, count in zip(columns, counts, strict=True) if count]
    if lacking:
        log.warning(f"missing values in {listed(lacking)}: {STAND_IN}; one more input tells of missing numbers")
    measured = [
        _measured(column, values, dataset.name, named=bool(dataset.columns))
        for column, values in zip(columns, columns_of(inputs), strict=True)
    ]
    columns, means, stds, ranges = zip(*measured, strict=True)
    features = sum(column.features for column in columns)
    unit = _unit(columns) if dataset.columns else FEATURE_SPACE
    return Preprocessing((features,), (0.0,) * features, unit, means, stds, columns if dataset.columns else (), ranges)


def _unit(columns: Sequence[Column]) -> str:
    """In what radii are told."""
    notes = [CATEGORIES_COUNT] if any(column.categories for column in columns) else []
    notes += [TAILS_SQUEEZED] if any(column.long_tail for column in columns) else []
    return f"{DEVIATIONS} ({', '.join(notes)})" if notes else DEVIATIONS


def _measured(
    column: Column, values: Tensor, source: str, *, named: bool
) -> tuple[Column, float, float, tuple[float, float]]:
    """A column with what is known of its training part: what becomes 0, what becomes 1, and the range."""
    if column.categories:
        return column, 0.0, 1.0, (0.0, len(column.categories) - 1.0)
    present = values[~values.isnan()].double()
    mean, std, ends = _moments(present, f"column {column.name!r} of {source}")
    tail = _tail(present, std) if named else None
    column = replace(column, missing=len(present) < len(values), long_tail=tail is not None)
    return column, *(tail or (mean, std)), ends


def _moments(present: Tensor, name: str) -> tuple[float, float, tuple[float, float]]:
    """Mean, standard deviation and range of the numbers that are not missing."""
    if len(present) == 0:
        raise UserError(f"{name} has no value in the training part; leave it out (`drop`)")
    mean, std = float(present.mean()), float(present.std(correction=0))
    if not math.isfinite(mean) or not math.isfinite(std):
        raise UserError(f"{name} holds numbers too large to standardise, up to {float(present.abs().max()):g}")
    ends = float(present.min()), float(present.max())
    return mean, std if std > 0 else 1.0, ends  # a constant column carries nothing and stays at zero


def _tail(present: Tensor, std: float) -> tuple[float, float] | None:
    """Median and spread of a long-tailed column, such as amounts of money, whose deviation tells of the tail alone."""
    low, median, high = np.quantile(present.numpy(), [0.25, 0.5, 0.75]).tolist()
    spread = (high - low) / NORMAL_QUARTILES
    return (median, spread) if 0 < LONG_TAIL * spread < std else None


def encode(rows: Tensor, done: Preprocessing, *, first: int = 0) -> Tensor:
    """Raw rows (N, columns) as network inputs (N, F), in float32.

    A number becomes z = (x - mean) / std, in units of the training column's standard deviation; in a column with a long
    tail asinh(z), with its median and the spread of its middle half, which enlarges no change of z. A category becomes
    a block of zeros with sqrt(1/2) at its place. What is missing is zero throughout: the mean, or no category; where
    the training part had missing numbers in a column, one more input is 1 for them and else 0. `first` is
    the number of the first row, for messages.
    """
    require_memory(4 * len(rows) * done.input_shape[0], f"a table of {len(rows)} rows, its categories spread out,")
    encoded = torch.zeros(len(rows), done.input_shape[0])
    mean, std = torch.tensor([done.column_mean, done.column_std], dtype=torch.float64)
    columns = done.columns or tuple(Column("") for _ in range(rows.shape[1]))
    numbers = [i for i, column in enumerate(columns) if not column.categories]
    squeezed = torch.tensor([columns[i].long_tail for i in numbers], dtype=torch.bool)
    starts = torch.tensor([0, *(column.features for column in columns)]).cumsum(0)[:-1]
    for start in range(0, len(rows), CHUNK):  # float64 a little at a time
        chunk, target = rows[start : start + CHUNK].double(), encoded[start : start + CHUNK]
        scaled = (chunk[:, numbers] - mean[numbers]) / std[numbers]
        scaled = torch.where(squeezed, scaled.asinh(), scaled)
        target[:, starts[numbers]] = scaled.nan_to_num(nan=0.0, posinf=math.inf, neginf=-math.inf).float()
        for i, column in enumerate(columns):
            if column.missing:
                target[:, starts[i] + 1] = MISSING_ON * chunk[:, i].isnan()
            if column.categories:
                known = (chunk[:, i] >= 0).nonzero().squeeze(1)  # neither missing nor unseen
                target[known, starts[i] + chunk[known, i].long()] = CATEGORY_ON
    if not encoded.isfinite().all():
        row, feature = (~encoded.isfinite()).nonzero()[0].tolist()
        raise UserError(f"row {first + row} is too far from the training data: feature {feature} is not finite")
    return encoded


def require_numbers(where: str, done: Preprocessing) -> None:
    """Refuse an array in place of a table that has more than numbers."""
    if any(column.categories or column.dates for column in done.columns):
        way_out = "give a .csv or .parquet table or a DataFrame with its columns"
        raise UserError(f"{where}: the run's table has categories or dates, which are no numbers; {way_out}")


def raw_radii(radii: Tensor, raw: Tensor, done: Preprocessing) -> Tensor:
    """How far each number of raw rows may move by itself, (N, columns) in its own units, within certified radii (N,).

    A number x is one input a of the network, in float32: a = z = (x - mean) / std, or asinh(z) in a long tail. Within
    the radius r it may move by d = r (1 - u) - u |a|, with u the error of rounding, and x by std d; in a long tail, by
    std (sinh |a| - sinh(|a| - d)), towards the middle, where it takes least. A missing number or a category has no
    answer (NaN).
    """
    mean, std = torch.tensor([done.column_mean, done.column_std], dtype=torch.float64)
    squeezed = torch.tensor([column.long_tail for column in done.columns] or [False])
    scaled = ((raw.double() - mean) / std).abs()
    inputs = torch.where(squeezed, scaled.asinh(), scaled)
    moves = (radii.double().unsqueeze(1) * (1 - ROUNDING) - ROUNDING * inputs).clamp(min=0)
    moves = std * torch.where(squeezed, 2 * (inputs - moves / 2).cosh() * (moves / 2).sinh(), moves)
    moves[:, [i for i, column in enumerate(done.columns) if column.categories]] = math.nan
    return moves


def number_features(done: Preprocessing) -> dict[int, int]:
    """The network input that each column of numbers becomes, by the column."""
    columns = done.columns or (Column(""),) * len(done.column_mean)
    starts = accumulate((column.features for column in columns), initial=0)
    return {i: start for i, (column, start) in enumerate(zip(columns, starts, strict=False)) if not column.categories}


def decode_numbers(ready: Tensor, raw: Tensor, done: Preprocessing) -> Tensor:
    """Raw rows (N, columns) with their numbers moved to where network inputs (N, F) are; what is missing stays so."""
    places, moved = number_features(done), raw.clone()
    for i, feature in places.items():
        scaled = ready[:, feature].double()
        scaled = scaled.sinh() if done.columns and done.columns[i].long_tail else scaled
        moved[:, i] = torch.where(raw[:, i].isnan(), raw[:, i], done.column_mean[i] + done.column_std[i] * scaled)
    return moved


def whole_raw_radius(radii: Tensor, ready: Tensor, done: Preprocessing) -> Tensor:
    """How far all numbers of a raw row may move together, (N,) in l2 norm and in their own units, within radii (N,).

    A change of d is at most d / min std of the network's inputs; rounding as for `raw_radii`.
    """
    return _least_std(done) * (radii.double() * (1 - ROUNDING) - ROUNDING * ready.double().norm(dim=1)).clamp(min=0)


def ready_epsilon(epsilon: float, ready: Tensor, done: Preprocessing) -> Tensor:
    """How far network inputs may move, (N,), where raw rows move by up to epsilon in l2 norm."""
    return epsilon / _least_std(done) * (1 + ROUNDING) + ROUNDING * ready.double().norm(dim=1)


def _least_std(done: Preprocessing) -> float:
    """Of the columns that hold numbers; categories do not move."""
    columns = done.columns or tuple(Column("") for _ in done.column_std)
    found = [std for std, column in zip(done.column_std, columns, strict=True) if not column.categories]
    return min(found, default=1.0)  # without a number nothing can move


def outside(raw: Tensor, done: Preprocessing) -> Tensor:
    """Which numbers of raw rows lie beyond the range that training saw by more than its width, (N, columns).

    And which categories training has not seen.
    """
    unseen = torch.tensor([bool(column.categories) for column in done.columns] or [False]) & (raw < 0)
    if not done.column_range:  # a run of an earlier version does not know
        return unseen
    low, high = torch.tensor(done.column_range, dtype=torch.float64).unbind(1)
    return unseen | (raw < low - (high - low)) | (raw > high + (high - low))  # never so for NaN
