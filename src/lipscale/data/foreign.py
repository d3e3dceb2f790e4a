"""Inputs of another set than a run's own, as that run's network takes them."""

from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from lipscale.data.dataset import Preprocessing, as_input, hint
from lipscale.data.input_files import read_inputs
from lipscale.data.load import read_dataset
from lipscale.data.pictures import as_bytes
from lipscale.data.registry import READERS
from lipscale.errors import UserError


def read_foreign(name: str, done: Preprocessing, *, data_dir: Path | None = None) -> tuple[Tensor, str]:
    """The test part of a named set, or all inputs of files and folders; pictures are brought to the run's size.

    Args:
        name: A name of READERS, or the path of a folder of pictures, a table, an .npy or an .npz file.
        done: What the run did to its inputs.
        data_dir: Where named sets are looked for first.

    Returns:
        (N, *input_shape), and what was done to the inputs, in words; empty where nothing was.
    """
    if name not in READERS:
        if not Path(name).exists():
            raise UserError(f"`against`: {name!r} is no path and no data set; {hint(name, tuple(READERS))}")
        return read_inputs([Path(name)], done)[0], ""
    inputs = as_input(read_dataset(name, data_dir).test.inputs)
    shape, wanted = tuple(inputs.shape[1:]), done.input_shape
    if shape == wanted:
        return inputs, ""
    if len(wanted) != 3 or wanted[0] not in (1, 3):
        raise UserError(f"`against`: {name} has pictures of shape {shape}, and the run takes inputs of shape {wanted}")
    pixels = (255 * inputs).round().byte().permute(0, 2, 3, 1).numpy()  # (N, H, W, C)
    pictures = (Image.fromarray(one.squeeze(2) if shape[0] == 1 else one) for one in pixels)
    brought = np.stack([as_bytes(one, wanted, fit=done.fit, name=name) for one in pictures])
    said = " were brought to ".join(" x ".join(map(str, one)) for one in (shape, wanted))
    return as_input(torch.from_numpy(brought)), f"pictures of {said}"
