"""Raw files -> class, probability and certified radius."""

import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from lipscale.certificate import Certificate
from lipscale.data import Preprocessing, Samples, standardise
from lipscale.errors import UserError
from lipscale.mode import evaluation_mode, predict_logits
from lipscale.run import Run


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


def predict(run: Run, inputs: Tensor, sources: Sequence[str], *, epsilon: float | None = None) -> list[Prediction]:
    """Classify network inputs (N, *input_shape); `epsilon` asks for the certified range of each probability."""
    samples = Samples(inputs.to(next(run.net.parameters()).device), torch.zeros(len(inputs)))
    with evaluation_mode(run.net):
        logits = predict_logits(run.net, samples)
        certificate = Certificate.of(run.net, samples.inputs)
    probabilities, classes = torch.softmax(logits.double(), 1).max(1)
    radii = certificate.radius(logits)
    rows = zip(sources, classes.tolist(), probabilities.tolist(), radii.tolist(), strict=True)
    answers = [Prediction(source, run.classes[c], p, r, run.preprocessing.unit) for source, c, p, r in rows]
    if epsilon is None:
        return answers
    lower, upper = (end.tolist() for end in certificate.confidence(logits, epsilon))
    return [replace(a, lowest=lo, highest=hi) for a, lo, hi in zip(answers, lower, upper, strict=True)]


def read_inputs(paths: Sequence[Path], preprocessing: Preprocessing) -> tuple[Tensor, list[str]]:
    """Network inputs from image files, .npy or .npz arrays (x) and .csv rows of numbers, and a name for each."""
    inputs, names = [], []
    for path in paths:
        found = _read(path, preprocessing)
        inputs.append(found)
        names += [str(path)] if len(found) == 1 else [f"{path}[{i}]" for i in range(len(found))]
    return torch.cat(inputs), names


def _read(path: Path, preprocessing: Preprocessing) -> Tensor:
    if not path.is_file():
        raise UserError(f"{path} {'is a folder' if path.is_dir() else 'does not exist'}")
    if path.suffix in (".npy", ".npz"):
        rows = _array(path)
    elif path.suffix in (".csv", ".txt"):
        rows = _csv(path)
    else:
        return _image(path, preprocessing)
    return _as_inputs(rows, path, preprocessing)


def _array(path: Path) -> np.ndarray:
    try:
        loaded = np.load(path, allow_pickle=False)  # pickled objects stay shut: they could run code
        return loaded["x"] if isinstance(loaded, np.lib.npyio.NpzFile) else loaded
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise UserError(f"{path} is no file of plain arrays (an .npz needs x)") from error


def _csv(path: Path) -> np.ndarray:
    rows: list[list[float]] = []
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {path}: {error}") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            rows.append([float(cell) for cell in line.replace(";", ",").split(",")])
        except ValueError:
            if number > 1:  # a first line of names is welcome
                raise UserError(f"{path}, line {number}: expected numbers, got {line[:60]!r}") from None
            continue
        if len(rows[-1]) != len(rows[0]):
            expected, got = len(rows[0]), len(rows[-1])
            raise UserError(f"{path}, line {number}: expected {expected} numbers as in the first row, got {got}")
    if not rows:
        raise UserError(f"{path} holds no row of numbers")
    return np.array(rows)


def _as_inputs(rows: np.ndarray, path: Path, preprocessing: Preprocessing) -> Tensor:
    """Check an array and bring it to (N, *input_shape)."""
    shape = preprocessing.input_shape
    if rows.dtype.kind not in "fiub" or rows.size == 0 or rows.size % prod(shape):
        raise UserError(f"{path}: expected numbers for inputs of shape {shape}, got {rows.dtype} {rows.shape}")
    # never reshape by count alone: channels that come last would be scrambled
    layouts = {shape, (prod(shape),), *([shape[1:]] if shape[0] == 1 else [])}
    if rows.shape not in layouts and rows.shape[1:] not in layouts:
        raise UserError(f"{path}: expected inputs of shape {shape} or rows of {prod(shape)}, got {rows.shape}")
    if not np.isfinite(rows).all():
        bad = int(np.argwhere(~np.isfinite(rows).reshape(-1, prod(shape)).all(1))[0, 0])
        raise UserError(f"{path}: input {bad} holds NaN or infinite values")
    inputs = torch.from_numpy(rows.reshape(-1, *shape))
    if len(shape) == 1:
        return standardise(inputs, preprocessing)
    inputs = inputs.float() / 255 if rows.dtype == np.uint8 else inputs.float()
    low, high = float(inputs.min()), float(inputs.max())
    if low < 0 or high > 1:
        raise UserError(f"{path}: pixels are bytes or numbers in [0, 1], got {low:g}..{high:g}")
    return inputs


def _image(path: Path, preprocessing: Preprocessing) -> Tensor:
    shape = preprocessing.input_shape
    if len(shape) != 3 or shape[0] not in (1, 3):
        raise UserError(f"{path}: this run takes inputs of shape {shape}, not pictures; give .csv, .npy or .npz")
    try:
        with Image.open(path) as file:
            if file.mode.startswith(("I", "F")):
                raise UserError(f"{path} has more than 8 bits a pixel ({file.mode}); convert it to 8 bits first")
            if file.has_transparency_data:  # what shines through is white
                seen = file.convert("RGBA")
                file = Image.alpha_composite(Image.new("RGBA", seen.size, "white"), seen)  # type: ignore[assignment]
            picture = file.convert("L" if shape[0] == 1 else "RGB")
            if picture.size != (shape[2], shape[1]):
                picture = picture.resize((shape[2], shape[1]), Image.Resampling.BILINEAR)
            pixels = np.asarray(picture, np.float32) / 255
    except (OSError, UnidentifiedImageError, Image.DecompressionBombError, ValueError) as error:
        raise UserError(f"cannot read {path} as a picture: {error}") from error
    return torch.from_numpy(pixels).reshape(shape[1], shape[2], shape[0]).movedim(-1, 0).unsqueeze(0)
