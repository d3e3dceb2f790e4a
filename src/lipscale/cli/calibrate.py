"""The command that says what post-hoc calibration would change: calibrate."""

from dataclasses import asdict
from typing import Annotated

import typer

from lipscale.cli.results import DataDir, Device, Json, RunFolder
from lipscale.errors import UserError


def calibrate(
    run: RunFolder,
    names: Annotated[
        str,
        typer.Option(
            "--with", metavar="NAMES", help="temperature, vector, matrix, dirichlet, histogram, isotonic, bbq; or all."
        ),
    ] = "temperature,vector",
    fit_on: Annotated[
        str, typer.Option(metavar="test|calibration", help="The test part in turns, or the run's calibration part.")
    ] = "test",
    data_dir: DataDir = None,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """What would post-hoc calibration change about a run: accuracy, NLL, ECE, and its certified radii.

    Each calibrator is fitted on samples that it is not measured on: four fifths of the test part for the other fifth,
    in turns. With `--fit-on calibration` it is fitted on the run's calibration part, which Phase II has trained on,
    unless there was none (`phase1_only`): a warning says so. Nothing of the run is changed.

        lipscale calibrate RUN --with temperature,vector,isotonic
    """
    from lipscale.calibration.posthoc import CALIBRATORS
    from lipscale.cli.show import print_table
    from lipscale.report.uncertainty import posthoc_table
    from lipscale.runs import load, recalibrate_run
    from lipscale.runs.folder import strict_json

    chosen = list(CALIBRATORS) if names == "all" else ["none", *(name.strip() for name in names.split(","))]
    if unknown := [name for name in chosen if name not in CALIBRATORS]:
        raise UserError(f"--with: expected {', '.join(CALIBRATORS)} or all, got {unknown[0]!r}")
    if fit_on not in ("test", "calibration"):
        raise UserError(f"--fit-on: expected test or calibration, got {fit_on!r}")
    loaded = load(run, device=device)
    found = recalibrate_run(
        loaded, list(dict.fromkeys(chosen)), on_calibration=fit_on == "calibration", data_dir=data_dir
    )
    if as_json:
        typer.echo(strict_json(asdict(found)))
    else:
        print_table(posthoc_table(found))
