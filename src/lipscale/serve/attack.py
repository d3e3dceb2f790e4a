"""An attack, live: PGD within epsilon of the input, judged in the arithmetic that the proof is about."""

from typing import Any

import torch
from torch import Tensor, nn

from lipscale._random import random_stream
from lipscale.attacks import pgd, worst_points
from lipscale.attacks.ball import Box, distances
from lipscale.data.encode import decode_numbers, encode, number_features
from lipscale.data.inputs import Inputs, column_names
from lipscale.errors import UserError
from lipscale.serve import schemas
from lipscale.serve.changes import shown_change
from lipscale.serve.served import Served

STEPS, RESTARTS = 40, 2
INSIDE = 1 - 1e-6  # float32 must not round what is found out of the ball


def attack(served: Served, question: Any) -> schemas.Attacked:
    """Try to change the class by a change of at most epsilon."""
    inputs, x, certificate = served.certified(question)
    label = certificate.logits.argmax(1)
    found, shown = (_moved_row if served.is_table else _moved_picture)(served, inputs, x, label, question.epsilon)
    logits, distance = served.proof(found).logits, float(distances(found, x))
    probabilities = torch.softmax(logits[0], 0)
    chances = served.chances(probabilities)
    return schemas.Attacked(
        changed=bool(logits.argmax(1) != label),
        certified=served.is_certified and max(question.epsilon, distance) <= float(certificate.radius()),
        label=chances[0].label,
        distance=distance,
        probability=float(probabilities[label]),
        classes=chances,
        **shown,
    )


def _moved_picture(
    served: Served, inputs: Inputs, x: Tensor, label: Tensor, epsilon: float
) -> tuple[Tensor, dict[str, Any]]:
    found = _search(served.searching, x, label, epsilon, served.box)
    return found, {"change": shown_change(x, found)}


def _moved_row(
    served: Served, inputs: Inputs, x: Tensor, label: Tensor, epsilon: float
) -> tuple[Tensor, dict[str, Any]]:
    """Numbers move, categories and gaps stay; what is judged is the row that one could type in."""
    done, raw = served.run.preprocessing, inputs.raw
    assert raw is not None
    places = {i: feature for i, feature in number_features(done).items() if not raw[0, i].isnan()}
    if not places:
        raise UserError("the row has no number that an attack could move")
    features = torch.tensor([*places.values()], device=x.device)
    net = _Numbers(served.searching, x, features)
    searched = x.index_copy(1, features, _search(net, x[:, features], label, epsilon, None))
    moved = decode_numbers(searched.cpu(), raw, done)
    names, before, after = column_names(done), raw[0].tolist(), moved[0].tolist()
    moves = [schemas.Move(name=names[i], before=before[i], after=after[i]) for i in places]
    return encode(moved, done).to(x), {"columns": moves}


class _Numbers(nn.Module):
    """The network as a function of a row's numbers alone."""

    def __init__(self, net: nn.Module, row: Tensor, features: Tensor) -> None:
        super().__init__()
        self.net, self.row, self.features = net, row, features

    def forward(self, numbers: Tensor) -> Tensor:
        """(N, numbers) -> (N, C)."""
        return self.net(self.row.expand(len(numbers), -1).index_copy(1, self.features, numbers))


def _search(net: nn.Module, x: Tensor, label: Tensor, epsilon: float, box: Box | None) -> Tensor:
    """A point of another class within epsilon, or else the one that shakes the class most."""
    how: Any = {"epsilon": INSIDE * epsilon, "steps": STEPS, "box": box, "generator": random_stream(0, "attack")}
    found = pgd(net, x, label, restarts=RESTARTS, **how)
    return worst_points(net, x, label, **how) if torch.equal(found, x) else found
