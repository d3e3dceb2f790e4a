"""A run that answers: its network with the proof, which is made once, and questions as network inputs."""

import base64
import binascii
import copy
from dataclasses import dataclass, field
from math import isfinite, prod
from threading import Lock
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lipscale.attacks.ball import Box
from lipscale.certificates import Certificate, Proof, prove
from lipscale.data import as_input
from lipscale.data.inputs import Inputs, as_inputs, picture_shape
from lipscale.data.pictures import look, quiet_pillow, read_picture
from lipscale.errors import UserError
from lipscale.runs import Run
from lipscale.runs.assembly import box_of, device_of
from lipscale.serve import schemas

MOST_PIXELS = 25_000_000  # of a picture that is sent


@dataclass(frozen=True)
class Served:
    """A run, its proof, and the same network in float32 for attacks to search with."""

    run: Run
    proof: Proof
    searching: nn.Module
    alone: Lock = field(default_factory=Lock)  # one question at a time: a network computes on all cores anyway

    @classmethod
    def of(cls, run: Run) -> "Served":
        """Prove a run; what no picture file can be is refused."""
        shape = run.preprocessing.input_shape
        if len(shape) > 1:
            picture_shape(str(run.folder), run.preprocessing)
        proof = prove(run.net, shape)
        return cls(run, proof, copy.deepcopy(proof.net).float().requires_grad_(False))

    @property
    def is_table(self) -> bool:
        """Whether inputs are rows."""
        return len(self.run.preprocessing.input_shape) == 1

    @property
    def is_certified(self) -> bool:
        """Whether anything is proven about the network."""
        return isfinite(self.proof.bound)

    @property
    def box(self) -> Box | None:
        """Where changed inputs have to stay."""
        return box_of(self.run.preprocessing)

    def certified(self, question: Any) -> tuple[Inputs, Tensor, Certificate]:
        """The input that a question is about, as the network takes it (1, ...), and its certificate."""
        inputs = self._row(question.row) if self.is_table else self._picture(question.picture)
        x = inputs.ready.to(device_of(self.run.net))
        return inputs, x, self.proof(x)

    def chances(self, probabilities: Tensor) -> list[schemas.Chance]:
        """All classes, the most probable first."""
        order, shares = probabilities.argsort(descending=True, stable=True), probabilities.tolist()
        return [schemas.Chance(label=self.run.classes[k], probability=shares[k]) for k in order.tolist()]

    def _picture(self, text: str) -> Inputs:
        try:
            content = base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            raise UserError("picture: expected a picture file in base64") from None
        source, done = (content, "the picture"), self.run.preprocessing
        with quiet_pillow():
            height, width = look(source)[0]
            if prod((height, width)) > MOST_PIXELS:
                raise UserError(f"the picture has {width}x{height} pixels; give at most {MOST_PIXELS // 10**6} million")
            pixels = read_picture(source, done.input_shape, fit=done.fit)
        return Inputs(as_input(torch.from_numpy(np.stack([pixels]))), ["the picture"])

    def _row(self, row: Any) -> Inputs:
        if isinstance(row, list):
            return as_inputs(np.array([row]), self.run.preprocessing)
        cells = row.model_dump(by_alias=True)
        # an empty text is a missing value, whatever the column holds
        return as_inputs([{name: "" if cell is None else cell for name, cell in cells.items()}], self.run.preprocessing)
