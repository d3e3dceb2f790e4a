"""The commands that make many runs: compare | reproduce | sweep."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from lipscale.cli.signals import Stopped, StopRequest, polite_stop
from lipscale.cli.training import given_settings
from lipscale.errors import UserError
from lipscale.settings import DataSettings, Settings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lipscale.experiments.plan import Planned
    from lipscale.experiments.pool import Outcome

Jobs = Annotated[
    int | None,
    typer.Option(
        min=1, help="Runs at a time; default one a core, one where there is a GPU, all that a cluster has room for."
    ),
]
EngineOption = Annotated[
    str,
    typer.Option(
        metavar="local|dask|ray|slurm", help="What places the runs: this machine, or a cluster (docs/CLUSTER.md)."
    ),
]
Address = Annotated[
    str | None, typer.Option(help="The cluster's scheduler; left out, dask and ray start a cluster of this machine.")
]
Cores = Annotated[int | None, typer.Option(min=1, help="Cores that each run computes on; on a cluster 1 by default.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="List the runs, their epochs and their state, and make none.")]
DataDir = Annotated[
    Path | None, typer.Option(help="A folder with data sets, searched before $LIPSCALE_DATA and the system's.")
]
Out = Annotated[Path | None, typer.Option(metavar="FOLDER", help="Where runs and results go.")]


# what of the settings decides a comparison: the data, the network and the budget
COMPARED = (
    *DataSettings.model_fields,
    *("model", "width", "depth", "epochs", "minutes", "epsilons", "calibration_tolerance", "device"),
)


def compare(
    seeds: Annotated[int, typer.Option(min=1, metavar="N", help="Train every network under so many seeds.")] = 1,
    out: Out = None,
    jobs: Jobs = None,
    dry_run: DryRun = False,
    **flags: str | list[str] | None,
) -> None:
    """What do I gain? LiST beside what you would use instead, and a sentence that says which to choose.

    LiST, its unconstrained twin with and without temperature scaling, and for tables logistic regression and gradient
    boosting (with CalibratedClassifierCV, too), on the same training and test part:

        lipscale compare --data patients.csv --label outcome

        lipscale compare --data fashion-mnist --limit 5000 --minutes 2 --seeds 3

    Everything is kept: the same command goes on where it was stopped, and does nothing twice.
    """
    from lipscale._files import write_atomically
    from lipscale.cli.show import print_texts
    from lipscale.experiments.choice import RULE, choose
    from lipscale.experiments.compare import Comparison
    from lipscale.experiments.compare_page import entries_of, notes_of, page, texts_of
    from lipscale.experiments.plan import shared
    from lipscale.experiments.results import Results

    given, given_as = given_settings(flags)
    comparison = Comparison.of(Settings.checked(given, place=given_as), seeds=seeds)
    out = out or Path("comparisons") / Path(comparison.settings.data).stem
    plan = shared(run for row in comparison.rows() for run in row.runs)
    cores = 1 if comparison.is_table else None  # as scikit-learn's models have there, so that times can be compared
    outcome = _carry_out(plan, out, Place(jobs=jobs, cores=cores), data_dir=None, dry_run=dry_run)
    results = Results(out / "runs", plan)
    candidates = comparison.candidates(results, out, lambda name: typer.echo(f"fitting {name}", err=True))
    said = "\n".join(choose(candidates, comparison.majority_rate)[1])
    notes = ["* the best of its column.", *notes_of(comparison, candidates), RULE, f"\n{said}"]
    print_texts(texts_of(entries_of(candidates)), "\n".join(notes))
    write_atomically(out / "compare.html", page(comparison, candidates).encode())
    typer.echo(f"\nPage: {out / 'compare.html'}")
    _report_failures(outcome)


def reproduce(
    items: Annotated[list[str], typer.Argument(metavar="ITEM...", help="table1, table2, figures, claims or all.")],
    profile: Annotated[
        str,
        typer.Option(metavar="mini|smoke|paper", help="Complete sets, a quick look, or the paper's scale."),
    ] = "mini",
    out: Out = None,
    jobs: Jobs = None,
    engine: EngineOption = "local",
    address: Address = None,
    cores: Cores = None,
    data_dir: DataDir = None,
    dry_run: DryRun = False,
) -> None:
    """Make the paper's tables and figures again, with a verdict on every claim.

    The profile `mini` trains patchnet on the complete CIFAR-10, CIFAR-100 and Tiny-ImageNet, at most 300 CPU-seconds a
    run; `smoke` trains MLPs on digits and on 5,000 images, for a quick look; `paper` is the paper's scale, for a GPU.
    Runs are shared between items, made in parallel and kept: the same command goes on where it was stopped.

        lipscale reproduce all --dry-run

        lipscale reproduce table1

        lipscale reproduce claims --profile mini --jobs 2

    Tables are written as Markdown, LaTeX and CSV, figures as PNG and PDF, and RESULTS.md shows them all.
    """
    from lipscale.experiments import reproduce as paper
    from lipscale.experiments.profiles import profile_of
    from lipscale.experiments.results import Results

    chosen, scale = paper.items_of(items), profile_of(profile)
    out = out or Path("reproduction") / profile
    plan = paper.plan_of(chosen, scale)
    place = Place(engine, address, jobs, cores)
    outcome = _carry_out(plan, out, place, data_dir=data_dir, dry_run=dry_run)
    results = Results(out / "runs", paper.plan_of(list(paper.ROWS), scale))
    # the page shows what earlier commands have finished, too
    shown = [item for item in paper.ROWS if item in (*chosen, *paper.finished_items(scale, results))]
    paper.write(shown, scale, results, out)
    typer.echo(f"Results: {out / 'RESULTS.md'}")
    _report_failures(outcome)


def sweep(
    grid: Annotated[Path, typer.Argument(metavar="GRID.yaml", help="The grid; see below.")],
    out: Out = None,
    jobs: Jobs = None,
    engine: EngineOption = "local",
    address: Address = None,
    cores: Cores = None,
    data_dir: DataDir = None,
    dry_run: DryRun = False,
) -> None:
    """Train a grid of methods, offsets, constants and seeds, and compare them in a table and a figure.

    The grid is a YAML file (offsets apply to list and fixed, constants to fixed; the attack is optional):

        settings: {data: fashion-mnist, limit: 5000, model: mlp}

        methods: [list, fixed, standard]

        offsets: [0, 1, 3]

        constants: [1, 4, 16]

        seeds: [0, 1, 2]

        attack: {name: pgd, epsilon: 0.5, samples: 200}

    The same command goes on where it was stopped, and does nothing twice.
    """
    from lipscale.cli.show import print_texts
    from lipscale.experiments import sweep as sweeps
    from lipscale.experiments.plan import shared
    from lipscale.experiments.results import Results
    from lipscale.experiments.tables import as_text

    rows = sweeps.rows_of(sweeps.read_grid(grid))
    out = out or Path("sweeps") / grid.stem
    plan = shared(run for row in rows for run in row.runs)
    place = Place(engine, address, jobs, cores)
    outcome = _carry_out(plan, out, place, data_dir=data_dir, dry_run=dry_run)
    results = Results(out / "runs", plan)
    written = sweeps.write(rows, results, out)
    print_texts(as_text(sweeps.table_of(rows, results)), "In per cent but for L; * is the best of its column.")
    typer.echo(f"Written: {', '.join(path.name for path in written)} in {out}")
    _report_failures(outcome)


class Place(NamedTuple):
    """Where runs are made."""

    engine: str = "local"
    address: str | None = None
    jobs: int | None = None  # runs at a time
    cores: int | None = None  # of each run


def _carry_out(
    plan: "Sequence[Planned]", out: Path, place: Place, *, data_dir: Path | None, dry_run: bool
) -> "Outcome":
    """Check that the plan can be carried out, then do it behind a progress display; a dry run ends here."""
    from rich.console import Console
    from rich.table import Table

    from lipscale.cli.progress import PlanProgress
    from lipscale.experiments.engines import engine_of
    from lipscale.experiments.making import finished
    from lipscale.experiments.plan import describe
    from lipscale.experiments.pool import carry_out, default_jobs
    from lipscale.experiments.reproduce import require_data
    from lipscale.experiments.results import read_result

    if out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file; choose another --out")
    runs = out / "runs"
    data_dir = data_dir.expanduser().resolve() if data_dir else None
    if not dry_run:  # a list needs neither data nor extras
        require_data(plan, data_dir)
    done = {run.digest for run in plan if finished(runs, run)}
    jobs = place.jobs or (default_jobs(plan) if place.engine == "local" else None)
    if dry_run:
        table = Table("run", "epochs", "state", box=None, padding=(0, 2, 0, 0))
        for run in plan:
            minutes, epochs = run.settings.minutes, run.settings.epochs
            budget = str(epochs) if minutes is None else f"in {minutes:g} min"
            table.add_row(describe(run), budget, "done" if run.digest in done else "to do")
        Console().print(table)
        room = f"{jobs} at a time" if jobs else f"as many at a time as {place.engine} has room for"
        typer.echo(f"{len(plan)} runs, {len(plan) - len(done)} to do, {room}.")
        raise typer.Exit
    stop = StopRequest()
    with (
        engine_of(place.engine, place.address, jobs=jobs, cores=place.cores or 1, folder=out / ".engine") as engine,
        PlanProgress(len(plan), done=len(done)) as progress,
        polite_stop(stop, lambda line: typer.echo(line, err=True)),
    ):
        out.mkdir(parents=True, exist_ok=True)  # an engine that is not there leaves nothing behind

        def on_end(run: "Planned", how: str) -> None:
            if not how and (result := read_result(runs, run)):
                found = result.metrics
                how = f"accuracy {found.accuracy:.3f}, ECE {found.ece:.4f}, {found.seconds:.0f} s"
            progress(f"{describe(run)}: {how}")

        outcome = carry_out(
            plan, runs, jobs=engine.jobs, cores=place.cores, executor=engine.executor, done=done, data_dir=data_dir,
            on_end=on_end, should_stop=stop,
        )  # fmt: skip
    if outcome.stopped:
        raise Stopped("Stopped. What is finished is kept: the same command goes on.", stop.exit_code)
    return outcome


def _report_failures(outcome: "Outcome") -> None:
    for run, why in outcome.failed:
        typer.echo(f"failed: {run.name}: {why}", err=True)
    if failed := len(outcome.failed):
        raise UserError(f"{failed} runs have failed; the results are without them. The same command tries again")
