"""A run for other runtimes: one file that answers with logits, probabilities and a certified radius."""

import io
import json
import logging
import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lipscale._files import write_atomically
from lipscale.bounds import get_lipschitz
from lipscale.certificates import Proof, prove
from lipscale.data import Preprocessing
from lipscale.errors import UserError
from lipscale.models.export import export_plain
from lipscale.runs.run import Run

FORMATS = {"onnx": ".onnx", "torch": ".pt2", "plain": ".safetensors"}
OUTPUTS = ("logits", "probabilities", "radius")
TRIED, CHUNK = 512, 64  # inputs on which the runtime's rounding error is measured, and how many at a time
SAFETY = 8.0  # what is allowed for over the largest error that was seen
Answers = Callable[[Tensor], Tensor]  # the logits that a runtime finds


class Certified(nn.Module):
    """Raw inputs -> logits, probabilities and R = min_j (z_k - z_j - allowance) / K_kj for the answer k, in float32.

    The constants' reciprocals are rounded down. `allowance` is what the runtime's rounding may do to a gap, here and at
    the end of the radius; it is measured, see `rounding_allowance`, on inputs of norms up to `tried`, and grows beyond
    them as rounding errors do. An input that float32 cannot answer has no radius.
    """

    inverse: Tensor
    own: Tensor
    allowance: Tensor
    tried: Tensor
    mean: Tensor
    std: Tensor

    def __init__(self, net: nn.Module, proof: Proof, preprocessing: Preprocessing, tried: float) -> None:
        super().__init__()
        self.net, self.is_table = net, reads_raw_table(preprocessing)
        slopes = proof.pairwise.cpu() * (1 + 1e-12)
        inverse = torch.where(slopes > 0, 1 / slopes, math.inf).clamp(max=1e30)
        self.register_buffer("inverse", torch.nextafter(inverse.float(), torch.zeros(())))
        self.register_buffer("own", torch.eye(len(inverse)) * 3e38)  # a class does not compete with itself
        self.register_buffer("allowance", torch.tensor(0.0))
        self.register_buffer("tried", torch.tensor(max(tried, 1e-30)))
        if self.is_table:
            self.register_buffer("mean", torch.tensor(preprocessing.column_mean, dtype=torch.float64))
            self.register_buffer("std", torch.tensor(preprocessing.column_std, dtype=torch.float64))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(N, ...) -> (N, C), (N, C), (N,)."""
        if self.is_table:
            x = ((x - self.mean) / self.std).float()
        logits = self.net(x)
        chosen = logits.argmax(1)
        beyond = (x.flatten(1).norm(dim=1, keepdim=True) / self.tried).clamp(min=1.0)
        gaps = logits.amax(1, keepdim=True) - logits - self.allowance * beyond
        radius = (gaps * self.inverse[chosen] + self.own[chosen]).amin(1)
        radius = torch.where(logits.abs().amax(1) < 1e30, torch.relu(radius), torch.zeros_like(radius))
        return logits, logits.softmax(1), radius * (1 - 1e-6)


def reads_raw_table(done: Preprocessing) -> bool:
    """Whether a file can standardise a table's rows by itself: of numbers only, without gaps and long tails."""
    is_plain = not any(c.categories or c.dates or c.missing or c.long_tail for c in done.columns)
    return len(done.input_shape) == 1 and bool(done.column_mean) and is_plain


def export_run(run: Run, path: Path, *, kind: str, inputs: Tensor) -> dict[str, Any]:
    """Write a run as one file for another runtime.

    Args:
        run: A finished run with a certificate.
        path: Where to write.
        kind: "onnx", "torch" (torch.export's .pt2) or "plain" (the weights of ordinary layers, safetensors).
        inputs: Network inputs (N, ...) of real samples, on which the runtime's rounding error is measured.

    Returns:
        What the file says of itself: classes, L, the bound, the unit of the radius, and the rounding allowance.
    """
    if kind not in FORMATS:
        raise UserError(f"`format`: expected {', '.join(FORMATS)}, got {kind!r}")
    if not run.settings.is_constrained:
        raise UserError(f"{run.folder} has no certificate (method {run.settings.method}): there is no radius to export")
    net, done = export_plain(run.net.cpu()), run.preprocessing
    proof = prove(run.net, done.input_shape)
    raw = inputs[:TRIED].cpu()
    if reads_raw_table(done):
        std, mean = (torch.tensor(numbers, dtype=torch.float64) for numbers in (done.column_std, done.column_mean))
        raw = raw.double() * std + mean
    about: dict[str, Any] = {
        **{"classes": list(run.classes), "lipschitz": get_lipschitz(run.net), "bound": proof.bound, "unit": done.unit},
        **{"inputs": _inputs_of(done, encoded=kind == "plain"), "epsilons": list(run.settings.epsilons)},
    }
    if kind == "plain":
        write_atomically(path, _plain(net, about))
        return about
    write, answers = {"onnx": (_onnx, _onnx_logits), "torch": (_torch, _torch_logits)}[kind]
    certified = Certified(net, proof, done, tried=float(inputs[:TRIED].flatten(1).norm(dim=1).max())).eval()
    about["allowance"] = rounding_allowance(answers(write(certified, raw, about)), proof, raw, inputs[:TRIED].cpu())
    certified.allowance.fill_(about["allowance"])
    write_atomically(path, write(certified, raw, about))
    return about


def rounding_allowance(answers: Answers, proof: Proof, raw: Tensor, ready: Tensor) -> float:
    """What the rounding of a runtime may add to or take from a gap between logits, at x and at x', as measured.

    2 sqrt(2) times the largest distance of its logits from those in float64, times a margin for inputs that were not
    tried. Unlike the certificate's own allowance this is no theorem: runtimes choose their algorithms.
    """
    exact = proof(ready).logits
    found = torch.cat([answers(chunk) for chunk in raw.split(CHUNK)]).double()
    if found.shape != exact.shape or not found.isfinite().all():
        raise UserError("the runtime answers otherwise than the network does: nothing was written")
    return 2 * math.sqrt(2) * SAFETY * float((found - exact).norm(dim=1).max())


def _inputs_of(done: Preprocessing, *, encoded: bool) -> str:
    if reads_raw_table(done) and not encoded:
        return f"raw rows of {len(done.column_mean)} numbers, float64"
    if len(done.input_shape) == 1:
        return f"rows of {done.input_shape[0]} features as lipscale encodes them, float32"
    return f"pixels in [0, 1], {' x '.join(map(str, done.input_shape))}, float32"


def _plain(net: nn.Module, about: dict[str, Any]) -> bytes:
    from safetensors.torch import save

    weights = {name: tensor.contiguous() for name, tensor in net.state_dict().items()}
    return save(weights, {"lipscale": json.dumps(about)})


def _batches() -> Any:
    return ({0: torch.export.Dim("batch")},)


def _torch(certified: Certified, raw: Tensor, about: dict[str, Any]) -> bytes:
    buffer, program = io.BytesIO(), torch.export.export(certified, (raw[:2],), dynamic_shapes=_batches())
    torch.export.save(program, buffer, extra_files={"lipscale.json": json.dumps(about)})
    return buffer.getvalue()


def _torch_logits(data: bytes) -> Answers:
    program = torch.export.load(io.BytesIO(data)).module()
    return lambda raw: program(raw)[0].detach()


def _onnx(certified: Certified, raw: Tensor, about: dict[str, Any]) -> bytes:
    _require("onnx", "onnxscript")
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it misses torchvision, which nothing here needs
    names: Any = {"input_names": ["input"], "output_names": list(OUTPUTS), "verbose": False}
    how: Any = {"dynamo": True, "opset_version": 20, "dynamic_shapes": _batches()}
    with warnings.catch_warnings(action="ignore"):  # about torch's own insides
        program = torch.onnx.export(certified, (raw[:2],), **how, **names)
    assert program is not None
    model = program.model_proto
    for key, value in about.items():
        model.metadata_props.add(key=key, value=value if isinstance(value, str) else json.dumps(value))
    return model.SerializeToString()


def _onnx_logits(data: bytes) -> Answers:
    _require("onnxruntime")
    import onnxruntime

    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    return lambda raw: torch.from_numpy(session.run(["logits"], {"input": raw.numpy()})[0])


def _require(*modules: str) -> None:
    for module in modules:
        try:
            __import__(module)
        except ImportError:
            raise UserError(f"ONNX files need {module}: pip install 'lipscale[onnx]'") from None
