"""The command that hands a run to other runtimes: export."""

from pathlib import Path
from typing import Annotated

import typer

from lipscale.cli.results import DataDir, RunFolder
from lipscale.errors import UserError


def export(
    run: RunFolder,
    kind: Annotated[str, typer.Option("--format", metavar="onnx|torch|plain", help="What to write.")] = "onnx",
    out: Annotated[Path | None, typer.Option(help="The file; default NAME.onnx, .pt2 or .safetensors.")] = None,
    data_dir: DataDir = None,
) -> None:
    """Write a run as one file that answers with logits, probabilities and a certified radius.

    `onnx` is for ONNX runtimes, `torch` is torch.export's format; both take batches of any size and hold classes, L,
    the bound and the unit of the radius. `plain` has the weights of ordinary layers alone. What the runtime's rounding
    may do is measured here, in onnxruntime or torch, on test samples, with a wide margin. A runtime that computes in
    less than float32 answers with radii that do not hold: OpenVINO does so by default, ask it for f32.

        lipscale export RUN --format onnx --out model.onnx
    """
    from lipscale.runs import first_test_samples, load
    from lipscale.runs.export import FORMATS, TRIED, export_run

    if kind not in FORMATS:
        raise UserError(f"--format: expected {', '.join(FORMATS)}, got {kind!r}")
    loaded = load(run, device="cpu")
    path = out or Path(f"{run.resolve().name}{FORMATS[kind]}")
    about = export_run(loaded, path, kind=kind, inputs=first_test_samples(loaded, TRIED, data_dir=data_dir)[0])
    typer.echo(f"Wrote {path}: {about['inputs']}")
    if "allowance" in about:
        typer.echo(f"Radii in {about['unit']} allow for {about['allowance']:.2g} of rounding between two logits.")
