"""The command that trains."""

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

from lipscale.cli.wording import as_commands
from lipscale.errors import StoppedError, UserError
from lipscale.settings import Settings


def train(
    settings_file: Annotated[
        Path | None, typer.Argument(metavar="SETTINGS.yaml", help="Settings in a YAML file.")
    ] = None,
    recipe: Annotated[
        str | None, typer.Option(metavar="NAME", help="Start from the settings of one of the paper's runs.")
    ] = None,
    resume: Annotated[Path | None, typer.Option(metavar="RUN", help="Continue a run that was stopped.")] = None,
    **flags: str | None,
) -> None:
    """Train a calibrated, certified classifier and write a run folder.

    LiST trains under a Lipschitz constant L and, every epoch, moves it by the temperature T* measured on a calibration
    set, about L <- L / T*, until T* is 1 (Phase I). Then it trains on all data with L frozen (Phase II). The whole run
    is planned for --epochs.

    Settings come from the defaults, then from SETTINGS.yaml, then from flags:

        lipscale train

        lipscale train --data fashion-mnist --limit 5000 --model mlp --epochs 40

        lipscale train settings.yaml --offset 3 --out runs/robust

        lipscale train --method pgd-at --out runs/baseline

        lipscale train --resume runs/robust
    """
    given = {key: value for key, value in flags.items() if value is not None}
    if resume is not None:
        if given or settings_file or recipe:
            raise UserError("a resumed run keeps its settings: give --resume RUN alone")
        _watch(resume)
        return
    values: dict[str, Any] = {}
    place: dict[str, str] = {}
    if recipe:
        from lipscale.experiments import RECIPES

        if recipe not in RECIPES:
            raise UserError(f"unknown recipe {recipe!r}; known: {', '.join(RECIPES)}")
        values = RECIPES[recipe]().model_dump()
    if settings_file is not None:
        from lipscale.runs.settings_file import read_settings

        from_file, place = read_settings(settings_file)
        values |= from_file
    place |= {key: f"--{key.replace('_', '-')}" for key in given}
    _watch(Settings.checked({**values, **given}, place=place))


def _watch(what: Settings | Path) -> None:
    """Train by settings, or resume a folder, behind a progress display, then say what came out."""
    from lipscale.cli.show import print_metrics
    from lipscale.cli.signals import StopRequest, polite_stop
    from lipscale.report import write_report
    from lipscale.runs import resume, train

    started: list[Path] = []
    stop = StopRequest()
    with ExitStack() as stack:

        def on_start(run_folder: Path, resolved: Settings) -> None:
            started.append(run_folder)
            typer.echo(f"Run folder: {run_folder}", err=True)
            stack.enter_context(polite_stop(stop, lambda line: typer.echo(line, err=True)))

        try:
            how: Any = {"on_start": on_start, "should_stop": stop}
            run = train(what, **how) if isinstance(what, Settings) else resume(what, **how)
        except (StoppedError, KeyboardInterrupt) as stopped:
            again = f"go on with lipscale.resume('{started[0]}')" if started else "nothing was written"
            text = as_commands(str(stopped) or f"stopped at once; {again}")
            typer.echo(f"{text[0].upper()}{text[1:]}", err=True)
            raise typer.Exit(stop.exit_code) from None
    if not started:
        typer.echo(f"{run.folder} is finished already.", err=True)
    print_metrics(run.metrics, run.preprocessing.unit)
    typer.echo(f"\nReport: {write_report([run.folder], data_dir=run.settings.data_dir)}")
    typer.echo(f"Attack it with: lipscale evaluate {run.folder}")
    typer.echo(f"Look at predictions with: lipscale predict {run.folder}")
