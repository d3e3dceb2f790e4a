"""The command that trains; its flags are the settings, documented and checked where they are written: in Settings."""

import inspect
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import typer

from lipscale.cli.wording import as_commands
from lipscale.errors import StoppedError, UserError
from lipscale.settings import Settings

# the heading of --help under which each setting and those after it stand
HELP_GROUPS = {
    "data": "Data",
    "model": "Network",
    "method": "LiST",
    "batch_size": "Optimizer",
    "seed": "Run",
}


# what stands for a value in --help, by the first word that its type has
METAVARS = {
    "tuple[str": "NAMES",
    "tuple": "NUMBERS",
    "Path": "PATH",
    "bool": "true|false",
    "int": "N",
    "float": "NUMBER",
    "str": "TEXT",
}


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
    is planned for --epochs, or for --minutes.

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
    if "minutes" in given and "epochs" in given:
        raise UserError("give --epochs or --minutes, not both: minutes decide on the epochs")
    values: dict[str, Any] = _recipe(recipe) if recipe else {}
    place: dict[str, str] = {}
    if settings_file is not None:
        from lipscale.runs.settings_file import read_settings

        from_file, place = read_settings(settings_file)
        values |= from_file
    place |= {key: f"--{key.replace('_', '-')}" for key in given}
    _watch(Settings.checked({**values, **given}, place=place))


def _recipe(name: str) -> dict[str, Any]:
    from lipscale.experiments import RECIPES

    if name not in RECIPES:
        raise UserError(f"unknown recipe {name!r}; known: {', '.join(RECIPES)}")
    return RECIPES[name]().model_dump()


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
            if resolved.minutes is not None:
                sized = f"{resolved.model} of width {resolved.width}"
                typer.echo(f"Planned for {resolved.minutes:g} minutes: {resolved.epochs} epochs, {sized}", err=True)
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


def with_settings_as_flags(command: Any) -> Any:
    """Give the command one flag for each setting, beside its own."""
    *own, _ = inspect.signature(command).parameters.values()  # the last one takes the settings
    annotations: dict[str, Any] = {parameter.name: parameter.annotation for parameter in own}
    group = ""
    for name, field in Settings.model_fields.items():
        group = HELP_GROUPS.get(name, group)
        default = "" if field.default is None else f" [default: {_shown(field.default)}]"
        choices = get_args(field.annotation) if get_origin(field.annotation) is Literal else None
        kind = next((metavar for word, metavar in METAVARS.items() if word in str(field.annotation)), "VALUE")
        metavar = "|".join(choices) if choices else kind
        # text all the way: Settings checks it and names the flag, as it does for YAML
        option = typer.Option(metavar=metavar, help=as_commands(f"{field.description}{default}"), rich_help_panel=group)
        annotations[name] = Annotated[str | None, option]
    keyword = inspect.Parameter.KEYWORD_ONLY
    command.__signature__ = inspect.Signature(
        [inspect.Parameter(n, keyword, default=None, annotation=a) for n, a in annotations.items()]
    )
    command.__annotations__ = annotations
    return command


def _shown(value: Any) -> str:
    return ",".join(f"{v:.4g}" for v in value) if isinstance(value, tuple) else str(value)
