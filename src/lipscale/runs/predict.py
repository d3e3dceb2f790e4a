"""Raw files -> class, the probability of every class, and certified radius."""

import csv
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lipscale.certificates import Proof, Threshold, decided, prove
from lipscale.data.dataset import hint
from lipscale.data.encode import raw_radii
from lipscale.data.input_files import TRUE, read_files, read_inputs
from lipscale.data.inputs import Inputs, column_names
from lipscale.errors import UserError
from lipscale.runs.assembly import device_of
from lipscale.runs.folder import strict_json
from lipscale.runs.run import Run, first_test_samples

__all__ = ["Prediction", "as_bytes", "predict", "predict_files", "predict_test_samples", "read_inputs"]

OWN = ("label", "probability", "radius", "unit", "lowest", "highest", "outside")  # columns of the answers
ALL = "*"  # of `radii_of`
FORMATS = (".csv", ".parquet", ".json")


@dataclass(frozen=True)
class Prediction:
    """One answer; the class cannot change within `radius` of the input, in `unit`."""

    source: str
    label: str
    probability: float
    radius: float
    unit: str
    lowest: float | None = None  # with an epsilon: the range in which the probability stays
    highest: float | None = None
    probabilities: Mapping[str, float] = field(default_factory=dict)  # of every class
    radii: Mapping[str, float | None] = field(default_factory=dict)  # how far single columns may move, in their units
    outside: str | None = None  # of tables: the columns far outside of the training data, or with an unseen category
    kept: Mapping[str, Any] = field(default_factory=dict)  # columns of the file that it answers for

    def row(self) -> dict[str, Any]:
        """The answer as one row of a table: what was kept behind the source, p_CLASS and radius_COLUMN at the end."""
        own = {n: v for n in OWN if (v := getattr(self, n)) is not None}
        own |= {f"p_{name}": p for name, p in self.probabilities.items()}
        own |= {f"radius_{name}": radius for name, radius in self.radii.items()}
        if taken := [name for name in self.kept if name in own or name == "source"]:
            raise UserError(f"cannot keep the column {taken[0]!r}: the answers have one of that name; rename it")
        return {"source": self.source, **self.kept, **own}


def predict(
    run: Run,
    inputs: Tensor,
    sources: Sequence[str],
    *,
    epsilon: float | None = None,
    threshold: Threshold | None = None,
    proof: Proof | None = None,
) -> list[Prediction]:
    """Classify network inputs (N, *input_shape); `epsilon` asks for the certified range of each probability."""
    certificate = (proof or prove(run.net, inputs.shape[1:]))(inputs.to(device_of(run.net)))
    classes, radii = decided(certificate, threshold)
    rows = torch.softmax(certificate.logits, 1).tolist()
    answers = [
        Prediction(source, run.classes[c], p[c], radius, run.preprocessing.unit, probabilities=_named(run, p))
        for source, p, c, radius in zip(sources, rows, classes.tolist(), radii.tolist(), strict=True)
    ]
    if epsilon is None:
        return answers
    lower, upper = (end.tolist() for end in certificate.confidence(epsilon, classes))
    return [replace(a, lowest=lo, highest=hi) for a, lo, hi in zip(answers, lower, upper, strict=True)]


def _named(run: Run, probabilities: Sequence[float]) -> dict[str, float]:
    return dict(zip(run.classes, probabilities, strict=True))


def predict_files(
    run: Run,
    files: Sequence[Path],
    *,
    keep: Sequence[str] = (),
    radii_of: Sequence[str] = (),
    on_progress: Callable[[str, int, int], None] = lambda what, done, total: None,
    **how: Any,
) -> list[Prediction]:
    """Answers for pictures, folders of them, tables and arrays, some at a time.

    Args:
        run: Who answers.
        files: Where the inputs are.
        keep: Columns of tables to repeat.
        radii_of: Columns of tables of which to say how far each may move, all else equal; ALL for every number.
        on_progress: Told of what has been done.
        how: `epsilon` and `threshold`, as for `predict`.

    Returns:
        The answers, in the order of the files.
    """
    about: Any = {"keep": keep, "label": run.settings.label, "classes": run.classes, "on_progress": on_progress}
    how |= {"radii_of": radii_of, "proof": prove(run.net, run.preprocessing.input_shape)}
    return [
        answer for inputs in read_files(files, run.preprocessing, **about) for answer in _answers(run, inputs, **how)
    ]


def predict_test_samples(run: Run, count: int, *, data_dir: Path | None = None, **how: Any) -> list[Prediction]:
    """Answers for the first samples of the test part, with the truth; `epsilon` and `threshold` as for `predict`."""
    ready, labels = first_test_samples(run, count, data_dir=data_dir)
    truth = {f"{TRUE}{run.settings.label or 'class'}": [run.classes[y] for y in labels.tolist()]}
    inputs = Inputs(ready, [f"test sample {i}" for i in range(len(ready))], kept=truth)
    return _answers(run, inputs, **how)


def _answers(run: Run, inputs: Inputs, *, radii_of: Sequence[str] = (), **how: Any) -> list[Prediction]:
    """Answers with what else is known of each: columns far outside, radii of single columns, what was kept."""
    answers = predict(run, inputs.ready, inputs.names, **how)
    radii = torch.tensor([answer.radius for answer in answers], dtype=torch.float64)
    single = _single_radii(radii, inputs, run, radii_of)
    return [
        replace(
            answer,
            radii={name: values[i] for name, values in single.items()},
            outside=inputs.outside[i] if inputs.outside else None,
            kept={name: values[i] for name, values in inputs.kept.items()},
        )
        for i, answer in enumerate(answers)
    ]


def _single_radii(radii: Tensor, inputs: Inputs, run: Run, wanted: Sequence[str]) -> dict[str, list[float | None]]:
    """How far single columns may move; one that the network does not see may move as it likes, a gap has no answer."""
    names, columns = column_names(run.preprocessing), run.preprocessing.columns
    if not wanted or inputs.raw is None:
        return {}
    categories = [column.name for column in columns if column.categories]
    numbers = [name for name in names if name not in categories]
    wanted = numbers if ALL in wanted else wanted
    for name in wanted:
        if name in categories:
            raise UserError(f"column {name!r} holds categories, which do not move: a change of one counts 1")
        if name not in (*numbers, *inputs.unused):
            raise UserError(f"there is no column {name!r} to tell a radius of; {hint(name, numbers)}")
    moves = dict(zip(names, raw_radii(radii, inputs.raw, run.preprocessing).unbind(1), strict=True))
    endless = torch.full_like(radii, math.inf)
    return {name: [None if math.isnan(r) else r for r in moves.get(name, endless).tolist()] for name in wanted}


def as_bytes(answers: Sequence[Prediction], suffix: str) -> bytes:
    """Predictions as a file of one of the FORMATS."""
    rows = [answer.row() for answer in answers]
    if suffix == ".json":
        return f"{strict_json(rows)}\n".encode()
    names = list(dict.fromkeys(name for row in rows for name in row))  # not every file has the same columns to keep
    return _parquet(rows, names) if suffix == ".parquet" else _csv(rows, names)


def _csv(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> bytes:
    text = StringIO()
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


def _parquet(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    def column(name: str) -> Any:
        values = [row.get(name) for row in rows]
        try:
            return pa.array(values)
        except pa.ArrowException:  # a number in one file, a text in another
            return pa.array([None if value is None else str(value) for value in values])

    out = BytesIO()
    pq.write_table(pa.table({name: column(name) for name in names}), out)
    return out.getvalue()
