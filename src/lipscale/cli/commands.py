"""The command line: train | evaluate | predict | audit | report | data list | data get | reproduce | sweep."""

import json
import os
import re
import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from lipscale.cli.experiments import reproduce, sweep
from lipscale.cli.flags import with_settings_as_flags
from lipscale.errors import DivergedError, StoppedError, UnsoundError, UserError
from lipscale.runs.settings import Settings, make_settings, read_settings
from lipscale.training.settings import CONSTRAINED

# what needs torch is imported inside the commands: it takes seconds, and --help should not
app = typer.Typer(
    help="Train classifiers that are calibrated and certifiably robust out of the box (LiST).\n\n"
    "Start with `lipscale train`: it trains on the embedded digits within a minute.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
data_app = typer.Typer(help="The data sets that lipscale knows.", no_args_is_help=True)
app.add_typer(data_app, name="data")

RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="The run folder that `lipscale train` wrote.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]


Device = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="cpu or cuda; auto takes a GPU where there is one. Default: as the run was made."
    ),
]
DataDir = Annotated[Path | None, typer.Option(help="Where the data sets lie now, if not where they were.")]


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(version("lipscale"))
        raise typer.Exit


Version = Annotated[bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)]


@app.callback()
def _options(version: Version = False) -> None:
    pass


def main() -> None:
    """Run the command line; what the user can mend is one line on stderr and exit code 2."""
    # OpenMP's threads spin while they wait, which starves a small network where other programs use the cores too;
    # spinning only briefly costs nothing on an idle machine
    os.environ.setdefault("GOMP_SPINCOUNT", "3000")
    try:
        code = app(standalone_mode=False)
    except (UserError, DivergedError) as error:
        _complain(str(error))
    except UnsoundError as error:
        print(f"lipscale: {error}", file=sys.stderr)
        sys.exit(1)
    except BrokenPipeError:  # whoever read our output has seen enough
        sys.stderr.close()
        sys.exit(1)
    except OSError as error:  # a full disk, a folder that may not be written to
        _complain(str(error))
    except Exception as error:
        # a flag that does not exist, for one; typer has a click of its own, so known by what it can do
        if not hasattr(error, "format_message"):
            raise
        command = getattr(getattr(error, "ctx", None), "command_path", "lipscale")
        _complain(f"{error.format_message()} (see {command} --help)")
    except KeyboardInterrupt:
        sys.exit(130)
    sys.exit(code if isinstance(code, int) else 0)


def _complain(message: str) -> NoReturn:
    print(f"lipscale: {' '.join(as_commands(message).split())}", file=sys.stderr)
    sys.exit(2)


def as_commands(message: str) -> str:
    """A library's message in the words of the command line: `data_dir` is --data-dir, lipscale.resume is a command."""
    message = re.sub(r"lipscale\.resume\('(.*?)'\)", r"lipscale train --resume \1", message)
    return re.sub(
        r"`(\w+)`", lambda m: f"--{m[1].replace('_', '-')}" if m[1] in Settings.model_fields else m[0], message
    )


def train(
    settings_file: Path | None = None,
    recipe: str | None = None,
    resume: Path | None = None,
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
        _watch(resume, None)
        return
    values: dict[str, Any] = _recipe(recipe).model_dump() if recipe else {}
    place: dict[str, str] = {}
    if settings_file is not None:
        from_file, place = read_settings(settings_file)
        values |= from_file
    place = {key: where for key, where in place.items() if key not in given}
    place |= {key: f"--{key.replace('_', '-')}" for key in given}
    _watch(None, make_settings({**values, **given}, place=place))


def _recipe(name: str) -> Settings:
    from lipscale.experiments import RECIPES

    if name not in RECIPES:
        raise UserError(f"unknown recipe {name!r}; known: {', '.join(RECIPES)}")
    return RECIPES[name]()


def _watch(folder: Path | None, settings: Settings | None) -> None:
    """Train or resume behind a progress display, then say what came out."""
    from contextlib import ExitStack

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
            if settings is not None:
                run = train(settings, on_start=on_start, should_stop=stop)
            else:
                assert folder is not None
                run = resume(folder, on_start=on_start, should_stop=stop)
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


@app.command()
def evaluate(
    run: RunFolder,
    epsilon: Annotated[
        str | None, typer.Option(help="Radii to attack at, and to certify beside the run's own, such as 0.1,36/255.")
    ] = None,
    attack: Annotated[
        str, typer.Option(metavar="none|pgd|autoattack", help="What to attack with; AutoAttack is slow and strong.")
    ] = "pgd",
    attack_samples: Annotated[int, typer.Option(min=1, metavar="N", help="Test samples to attack.")] = 200,
    seed: Annotated[int, typer.Option(min=0, help="Fixes the attacked samples and the attack.")] = 0,
    data_dir: DataDir = None,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Measure a run on the test part of its data, then attack it.

    First accuracy, calibration with its uncertainty, and certified accuracy, on all test samples. Then, on a subset,
    the accuracy that an attack leaves, and what attacks on the confidence do to calibration, beside what is certified.
    A certificate that an attack breaks is an error (exit code 1). The attack's result is kept in RUN/robustness.json;
    a stopped one goes on where it was:

        lipscale evaluate RUN --attack none

        lipscale evaluate RUN --attack autoattack --attack-samples 1000 --epsilon 0.5
    """
    from dataclasses import asdict

    from lipscale.attacks import require_autoattack
    from lipscale.certificates.robustness import Attack
    from lipscale.cli.progress import AttackProgress
    from lipscale.cli.show import print_metrics, print_robustness
    from lipscale.runs import attack_run, evaluate_run, load
    from lipscale.runs.folder import strict_json

    attack = attack.lower()
    if attack not in ("none", "pgd", "autoattack"):
        raise UserError(f"--attack: expected none, pgd or autoattack, got {attack!r}")
    epsilons = _epsilons(epsilon) if epsilon is not None else None
    loaded = load(run, device=device)
    unit = loaded.preprocessing.unit
    if attack == "autoattack":
        require_autoattack(loaded.preprocessing.input_shape)
    if attack != "none" and epsilons and not any(epsilons):
        raise UserError(
            "--epsilon: an attack needs a radius above 0; with --attack none only certificates are measured"
        )
    metrics = evaluate_run(loaded, data_dir=data_dir, epsilons=epsilons)
    if not as_json:
        print_metrics(metrics, unit)
    robustness = None
    if attack != "none":
        try:
            with AttackProgress() as progress:
                robustness = attack_run(
                    loaded,
                    Attack(attack, seed=seed),  # type: ignore[arg-type]
                    samples=attack_samples,
                    epsilons=epsilons,
                    data_dir=data_dir,
                    on_progress=progress,
                )
        except KeyboardInterrupt:
            typer.echo("Stopped. The same command goes on where it was.", err=True)
            raise typer.Exit(130) from None
        if not as_json:
            print_robustness(robustness, unit, certified=metrics.is_certified)
            typer.echo(f"\nSee it with: lipscale report {run}")
    if as_json:
        typer.echo(strict_json(asdict(metrics) | ({} if robustness is None else {"robustness": asdict(robustness)})))


def _epsilons(text: str) -> tuple[float, ...]:
    return make_settings({"epsilons": text}, place={"epsilons": "--epsilon"}).epsilons


@app.command()
def predict(
    run: RunFolder,
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="FILE...", help="Pictures, .csv or .parquet tables, .npy or .npz arrays (x)."),
    ] = None,
    epsilon: Annotated[str | None, typer.Option(help="Print the certified range of each probability too.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write a table to this .csv or .json file instead.")] = None,
    data_dir: DataDir = None,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Print class, probability and certified radius for files, or for the first ten test samples.

    No change of the input that is smaller than the certified radius (in l2 norm) can change the class. The input is
    what the network sees: pictures are converted and resized to it first. With `--epsilon 0.1` the range is printed
    in which the probability provably stays under every change up to 0.1.
    """
    from lipscale._files import write_atomically
    from lipscale.cli.show import print_predictions
    from lipscale.runs import first_test_samples, load
    from lipscale.runs.predict import as_csv, predict, read_inputs
    from lipscale.runs.predict import as_json as to_json

    if out is not None and out.suffix not in (".csv", ".json"):
        raise UserError(f"--out {out}: expected a name that ends in .csv or .json")
    reach = _epsilons(epsilon)[0] if epsilon else None
    loaded = load(run, device=device)
    truth: list[str] = []
    if files:
        inputs, names = read_inputs(files, loaded.preprocessing)
    else:
        inputs, labels = first_test_samples(loaded, 10, data_dir=data_dir)
        names = [f"test sample {i}" for i in range(len(inputs))]
        truth = [loaded.classes[y] for y in labels.tolist()]
    answers = predict(loaded, inputs, names, epsilon=reach)
    if out is not None:
        write_atomically(out, (as_csv(answers) if out.suffix == ".csv" else f"{to_json(answers)}\n").encode())
        typer.echo(f"Wrote {len(answers)} predictions to {out}", err=True)
    elif as_json:
        typer.echo(to_json(answers))
    else:
        print_predictions(answers, truth, certified=loaded.settings.method in CONSTRAINED)


@app.command()
def audit(
    run: RunFolder,
    samples: Annotated[int, typer.Option(min=2, help="Test samples to attack.")] = 500,
    pairs: Annotated[int, typer.Option(min=1, help="Random pairs whose slope is measured.")] = 10_000,
    steps: Annotated[int, typer.Option(min=1, help="Steps of each attack.")] = 50,
    seed: Annotated[int, typer.Option(min=0, help="Fixes everything that is random.")] = 0,
    data_dir: DataDir = None,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Try to break a run's certificate; exit code 1 if anything gives.

    Attacks the class and the confidence of test samples with APGD at just under their certified radius (and with
    AutoAttack on a subset, where the extra `attack` is installed), and searches for slopes above the proven bound: by
    random pairs, by gradient ascent on pairs and by power iteration on the Jacobian.
    """
    from dataclasses import asdict

    from lipscale.certificates.audits import audit, verdict
    from lipscale.runs import first_test_samples, load

    loaded = load(run, device=device)
    if loaded.settings.method not in CONSTRAINED:
        raise UserError(f"{run} is unconstrained (method {loaded.settings.method}) and carries no certificate to audit")
    inputs, _ = first_test_samples(loaded, samples, data_dir=data_dir)
    inputs = inputs.to(next(loaded.net.parameters()).device)
    result = audit(
        loaded.net,
        inputs,
        pairs=pairs,
        steps=steps,
        autoattack_samples=50 if inputs.ndim == 4 else 0,  # AutoAttack takes pictures only
        seed=seed,
        on_progress=lambda what, done, total: typer.echo(f"{what}: {done} of {total}", err=True),
    )
    if as_json:
        typer.echo(json.dumps(asdict(result), indent=2))
    else:
        for name, value in asdict(result).items():
            typer.echo(f"{name:10}  {value:.7g}")
        typer.echo(verdict(result))
    if result.violations:
        raise typer.Exit(1)


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="One run folder, or several to compare.")],
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The page; default RUN/report.html, or report.html for several.")
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """Write a report to look at: one HTML file, and its figures as PNG and PDF.

    L and T* over the epochs, the reliability diagram, certified accuracy beside attacks, confidences, the hardest and
    easiest samples, two sliders to explore, and a verdict in plain words. Several runs are compared on one page:

        lipscale report runs/digits-mlp-list-1

        lipscale report runs/* --out comparison.html
    """
    from lipscale.report import figures_folder, write_report

    page = write_report(runs, out, data_dir=data_dir)
    typer.echo(f"Report: {page}\nFigures: {figures_folder(runs, page)}")


@data_app.command("list")
def list_data(
    data_dir: Annotated[Path | None, typer.Option(help="A folder to look in instead of the usual ones.")] = None,
) -> None:
    """List the data sets, where each was found, and how to get the others."""
    from rich.console import Console
    from rich.table import Table

    from lipscale.data import READERS, find_folder

    table = Table("name", "what it is", box=None, padding=(0, 2, 0, 0))
    table.add_column("where", overflow="fold")
    for name, reader in READERS.items():
        folder = find_folder(name, data_dir)
        where = "embedded" if not reader.layouts else str(folder) if folder else f"not found: {reader.get}"
        table.add_row(name, reader.about, where)
    Console().print(table)


@data_app.command("get")
def get_data(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A name from `lipscale data list`.")],
    data_dir: Annotated[Path | None, typer.Option(help="Where to put it; default ~/.local/share/lipscale.")] = None,
    mirror: Annotated[
        str | None, typer.Option(metavar="URL", help="Another address to get the same files from.")
    ] = None,
) -> None:
    """Download a public data set, check it and unpack it; a broken download goes on where it broke off."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    from lipscale.data import OWN_FOLDER, READERS, find_folder
    from lipscale.data.download import DOWNLOADS, get

    if name not in DOWNLOADS:
        raise UserError(f"unknown data set {name!r}; to be had: {', '.join(DOWNLOADS)}")
    target = data_dir or Path(OWN_FOLDER).expanduser()
    if found := find_folder(name, target):
        typer.echo(f"{name} is in {found} already.")
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True)) as bars:
        tasks: dict[str, Any] = {}

        def progress(file: str, done: int, total: int | None) -> None:
            if file not in tasks:
                tasks[file] = bars.add_task(file)
            bars.update(tasks[file], completed=done, total=total)

        folder = get(DOWNLOADS[name], target, progress=progress, mirror=mirror)
    if find_folder(name, target) is None:
        raise UserError(f"{folder} lacks files of {name}; expected {READERS[name].layouts[0][1]}")
    how = "" if data_dir is None else f" --data-dir {data_dir}"
    typer.echo(f"{name} is in {folder}. Train on it with: lipscale train --data {name}{how}")


app.command()(reproduce)
app.command()(sweep)
app.command()(with_settings_as_flags(train))
app.registered_commands.insert(0, app.registered_commands.pop())  # what people come for is listed first
