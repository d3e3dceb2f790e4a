"""The command that trains; its flags are the settings, documented and checked where they are written: in Settings."""

import inspect
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import typer

from lipscale.cli.launch import launch
from lipscale.cli.signals import Stopped, StopRequest, polite_stop
from lipscale.cli.wording import as_commands
from lipscale.errors import StoppedError, UserError
from lipscale.settings import Settings

# what people use stands first in --help
MOST_USED = ("data", "label", "test_data", "limit", "minutes", "epochs", "method", "offset", "model", "seed", "out")
# and the heading under which each other setting and those after it stand
HELP_GROUPS = {
    "data": "More: data",
    "model": "More: network",
    "method": "More: LiST",
    "batch_size": "More: optimizer",
    "seed": "More: run",
}

IN_FEATURE_SPACE = (
    "Radii are in feature space: distances between rows of x, each column in standard deviations. Where a backbone "
    "makes these rows, nothing is proven about changes of what it sees."
)
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
        str | None,
        typer.Option(
            metavar="NAME", help="Start from the settings of one of the paper's runs.", rich_help_panel="More: run"
        ),
    ] = None,
    resume: Annotated[Path | None, typer.Option(metavar="RUN", help="Continue a run that was stopped.")] = None,
    processes: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Train on so many processes of this machine; one a GPU.")
    ] = None,
    log: Annotated[
        str | None, typer.Option(metavar="NAMES", help="Log to tensorboard, mlflow, wandb, or several: mlflow,wandb.")
    ] = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Print every number and the whole verdict at the end, as the report does.")
    ] = False,
    **flags: str | list[str] | None,
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

        lipscale train --data cifar10 --processes 2
    """
    given, given_as = given_settings(flags)
    how: dict[str, Any] = {"loggers": [] if log is None else [name.strip() for name in log.split(",")]}
    if resume is not None:
        if given or settings_file or recipe:
            raise UserError("a resumed run keeps its settings: give --resume RUN alone")
        _start(resume, processes, how, verbose=verbose)
        return
    values: dict[str, Any] = _recipe(recipe) if recipe else {}
    place: dict[str, str] = {}
    if settings_file is not None:
        from lipscale.runs.settings_file import read_settings

        from_file, place = read_settings(settings_file)
        values |= from_file
    overruled = {"minutes": None} if "epochs" in given else {}  # a flag goes before a file's word on the same
    _start(Settings.checked({**values, **overruled, **given}, place=place | given_as), processes, how, verbose=verbose)


def given_settings(flags: Mapping[str, str | Sequence[str] | None]) -> tuple[dict[str, str], dict[str, str]]:
    """The settings that flags give, as text, and what each flag is called; one that names several may be repeated."""
    chosen = {key: value for key, value in flags.items() if value or value == ""}  # none, or no names: not given
    given = {key: value if isinstance(value, str) else ",".join(value) for key, value in chosen.items()}
    if "minutes" in given and "epochs" in given:
        raise UserError("give --epochs or --minutes, not both: minutes decide on the epochs")
    return given, {key: f"--{key.replace('_', '-')}" for key in given}


def _recipe(name: str) -> dict[str, Any]:
    from lipscale.experiments import RECIPES

    if name not in RECIPES:
        raise UserError(f"unknown recipe {name!r}; known: {', '.join(RECIPES)}")
    return RECIPES[name]().model_dump()


def _start(what: Settings | Path, processes: int | None, how: dict[str, Any], *, verbose: bool) -> None:
    """Train in this process, or in others that are started for it."""
    if processes is None or processes == 1:
        _watch(what, how, verbose=verbose)
        return
    if "TORCHELASTIC_RUN_ID" in os.environ:
        raise UserError("torchrun has started the processes already: leave --processes out")
    launch(processes, sys.argv[1:])


def _watch(what: Settings | Path, how: dict[str, Any], *, verbose: bool) -> None:
    """Train by settings, or resume a folder, behind a progress display, then say what came out."""
    from lipscale._processes import is_first
    from lipscale.cli.show import print_classes, print_first_sight, print_metrics
    from lipscale.data.dataset import FEATURE_SPACE
    from lipscale.report import write_report
    from lipscale.runs import resume, train
    from lipscale.training.epoch import counted

    speaks = is_first()
    started: list[Path] = []
    stop = StopRequest()

    def say(line: str) -> None:
        if speaks:
            typer.echo(line, err=True)

    with ExitStack() as stack:

        def on_start(run_folder: Path, resolved: Settings) -> None:
            started.append(run_folder)
            say(f"Run folder: {run_folder}")
            if resolved.minutes is not None:
                plan = f"{counted(resolved.epochs, 'epoch')}, {resolved.model} of width {resolved.width}"
                say(f"Planned for {counted(resolved.minutes, 'minute')}: {plan}")
            stack.enter_context(polite_stop(stop, say))

        try:
            how |= {"on_start": on_start, "should_stop": stop}
            run = train(what, **how) if isinstance(what, Settings) else resume(what, **how)
        except (StoppedError, KeyboardInterrupt) as stopped:
            again = f"go on with lipscale.resume('{started[0]}')" if started else "nothing was written"
            text = as_commands(str(stopped) or f"stopped at once; {again}")
            raise Stopped(f"{text[0].upper()}{text[1:]}", stop.exit_code) from None
    if not speaks:
        return
    if not started:
        say(f"{run.folder} is finished already.")
    if verbose:
        print_metrics(run.metrics, run.preprocessing.unit)
        print_classes(run.metrics)
    print_first_sight(run.metrics, weighted=run.settings.class_weights != "none")
    if run.preprocessing.unit == FEATURE_SPACE and run.metrics.is_certified:
        typer.echo(f"\n{IN_FEATURE_SPACE}")
    typer.echo(f"\nReport: {write_report([run.folder], data_dir=run.settings.data_dir)}")
    typer.echo(f"Next: lipscale predict {run.folder}, or attack it: lipscale evaluate {run.folder}")


def with_settings_as_flags(command: Any, names: Iterable[str] = Settings.model_fields) -> Any:
    """Give the command a flag for each of these settings, beside its own; those that people use come first."""
    *own, _ = inspect.signature(command).parameters.values()  # the last one takes the settings
    keyword, panels = inspect.Parameter.KEYWORD_ONLY, _panels()
    flags = {
        name: inspect.Parameter(name, keyword, default=None, annotation=_flag(name, panels[name])) for name in names
    }
    first = [flags.pop(name) for name in MOST_USED if name in flags]
    parameters = [*first, *flags.values(), *(parameter.replace(kind=keyword) for parameter in own)]
    command.__signature__ = inspect.Signature(parameters)
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


def _panels() -> dict[str, str | None]:
    """The heading of each setting in --help; those that people use are in the first panel, which has none."""
    found: dict[str, str | None] = {}
    group = ""
    for name in Settings.model_fields:
        group = HELP_GROUPS.get(name, group)
        found[name] = None if name in MOST_USED else group
    return found


def _flag(name: str, panel: str | None) -> Any:
    """A setting as a flag, with its description."""
    field = Settings.model_fields[name]
    default = "" if field.default is None else f" [default: {_shown(field.default)}]"
    kinds = (field.annotation, *get_args(field.annotation))  # the latter of one that may be left out
    choices = next((get_args(kind) for kind in kinds if get_origin(kind) is Literal), None)
    kind = next((metavar for word, metavar in METAVARS.items() if word in str(field.annotation)), "VALUE")
    metavar = "|".join(choices) if choices else kind
    # text all the way: Settings checks it and names the flag, as it does for YAML
    option = typer.Option(metavar=metavar, help=as_commands(f"{field.description}{default}"), rich_help_panel=panel)
    values = list[str] if kind == METAVARS["tuple[str"] else str
    return Annotated[values | None, option]


def _shown(value: Any) -> str:
    return ",".join(f"{v:.4g}" for v in value) if isinstance(value, tuple) else str(value)
