"""What is served, for forms and people, and test samples to try."""

from datetime import datetime, timedelta
from importlib.metadata import version
from math import isnan
from pathlib import Path
from typing import Any

import torch

from lipscale.data import Column, Preprocessing, as_input, read_dataset
from lipscale.errors import UserError
from lipscale.report.samples import as_png
from lipscale.runs import Run
from lipscale.runs.headline import first_numbers, headline
from lipscale.serve import schemas
from lipscale.serve.served import Served

SAMPLES = 12
EPOCH = datetime(1970, 1, 1)


def describe(served: Served, *, largest_body: int) -> schemas.About:
    """What is served."""
    run, done, said = served.run, served.run.preprocessing, headline(served.run.metrics)
    return schemas.About(
        name=run.folder.resolve().name,
        verdict=said.text,
        tone=said.tone,
        numbers=[schemas.Shown(name=n, value=c.value, note=c.note) for n, c in first_numbers(run.metrics).items()],
        classes=list(run.classes),
        unit=done.unit,
        certified=served.is_certified,
        bound=served.proof.bound if served.is_certified else None,
        input="row" if served.is_table else "picture",
        shape=list(done.input_shape),
        columns=[_form_field(done, i) for i in range(len(done.columns))],
        epsilons=list(run.settings.epsilons),
        largest_body=largest_body,
        version=version("lipscale"),
    )


def _form_field(done: Preprocessing, i: int) -> schemas.FormField:
    """What a form should know of a column."""
    column = done.columns[i]
    ends = done.column_range[i] if done.column_range and not column.categories else (None, None)
    return schemas.FormField(
        name=column.name,
        kind="date" if column.dates else "category" if column.categories else "number",
        categories=list(column.categories),
        typical=_cell(0.0 if column.categories else done.column_mean[i], column),
        least=ends[0],
        largest=ends[1],
    )


def some_samples(run: Run, data_dir: Path | None) -> list[schemas.Sample]:
    """Test samples as files have them; none where the data set is not here, or is another by now."""
    done = run.preprocessing
    shape = done.input_shape if len(done.input_shape) > 1 else (len(done.column_mean),)
    try:
        test = read_dataset(run.settings, data_dir, classes=run.classes, stored=done).test
    except UserError:
        return []
    if test.inputs.shape[1:] != shape:
        return []
    chosen = torch.linspace(0, len(test) - 1, min(SAMPLES, len(test))).long()
    inputs, truths = test.inputs[chosen], [run.classes[k] for k in test.labels[chosen].tolist()]
    if inputs.ndim > 2:
        found: list[Any] = [{"picture": as_png(picture)} for picture in as_input(inputs)]
    else:
        found = [{"row": _sent(row, done.columns)} for row in inputs.tolist()]
    return [schemas.Sample(truth=truth, **sample) for truth, sample in zip(truths, found, strict=True)]


def _sent(row: list[float], columns: tuple[Column, ...]) -> Any:
    """A raw row as one would send it."""
    if not columns:
        return row
    return {column.name: _cell(value, column) for column, value in zip(columns, row, strict=True)}


def _cell(value: float, column: Column) -> float | str | None:
    """A raw value as one would send it; of a date the day."""
    if isnan(value) or (column.categories and value < 0):
        return None
    if column.categories:
        return column.categories[int(value)]
    return f"{EPOCH + timedelta(days=value):%Y-%m-%d}" if column.dates else value
