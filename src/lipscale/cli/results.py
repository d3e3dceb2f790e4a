"""The commands that measure finished runs: evaluate | audit | report; and the flags that they share."""

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lipscale.cli.signals import Stopped
from lipscale.errors import UserError
from lipscale.settings import CONSTRAINED, Settings

if TYPE_CHECKING:
    from lipscale.runs import Run

RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="The run folder that `lipscale train` wrote.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]
Device = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="cpu or cuda; auto takes a GPU where there is one. Default: as the run was made."
    ),
]
DataDir = Annotated[Path | None, typer.Option(help="Where the data sets lie now, if not where they were.")]


ON_ACCURACY = ("pgd", "autoattack")
AttackNames = Annotated[
    str,
    typer.Option(
        metavar="NAMES",
        help="none, pgd, autoattack (slow and strong), uncertainty, or some of its attacks: ace, over, under, maximum, "
        "low-entropy, high-entropy, loss.",
    ),
]

Threshold = Annotated[
    float | None,
    typer.Option(metavar="P", help="For two classes: from which probability on the rarer one is answered."),
]
Positive = Annotated[
    str | None, typer.Option(metavar="CLASS", help="The class that the threshold is about, if not the rarer one.")
]


def evaluate(
    run: RunFolder,
    on: Annotated[
        Path | None,
        typer.Option(metavar="DATA", help="New labelled data instead of the test part: a table, a folder or an .npz."),
    ] = None,
    threshold: Threshold = None,
    positive: Positive = None,
    epsilon: Annotated[
        str | None, typer.Option(help="Radii to attack at, and to certify beside the run's own, such as 0.1,36/255.")
    ] = None,
    attack: AttackNames = "pgd",
    attack_samples: Annotated[int, typer.Option(min=1, metavar="N", help="Test samples to attack.")] = 200,
    seed: Annotated[int, typer.Option(min=0, help="Fixes the attacked samples and the attack.")] = 0,
    data_dir: DataDir = None,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Measure a run on the test part of its data, or on new data, then attack it.

    First accuracy, calibration with its uncertainty, and certified accuracy, on all test samples. Then, on a subset,
    the accuracy that an attack leaves, and what attacks on the confidence do to calibration, beside what is certified.
    Attacks on uncertainty put ECE, NLL, AURC and selective risk beside their certified worst case.
    A certificate that an attack breaks is an error (exit code 1). The attack's result is kept in RUN/robustness.json or
    RUN/uncertainty.json; a stopped PGD or AutoAttack goes on. With --on or --threshold all go into RUN/evaluations:

        lipscale evaluate RUN --attack none

        lipscale evaluate RUN --on new.csv --threshold 0.2

        lipscale evaluate RUN --attack autoattack --attack-samples 1000 --epsilon 0.5

        lipscale evaluate RUN --attack uncertainty
    """
    from lipscale.attacks import require_autoattack
    from lipscale.cli.show import print_classes, print_metrics, print_table
    from lipscale.report.uncertainty import posthoc_table, worst_case_table
    from lipscale.runs import evaluate_run, evaluation_file, load
    from lipscale.runs.folder import strict_json

    epsilons = epsilons_of(epsilon) if epsilon is not None else None
    attacks = _attacks_of(attack.lower(), epsilons)
    loaded = load(run, device=device)
    unit = loaded.preprocessing.unit
    if "autoattack" in attacks:
        require_autoattack(loaded.preprocessing.input_shape)
    how: Any = {"on": on, "threshold": threshold_of(loaded, threshold, positive), "data_dir": data_dir}
    metrics = evaluate_run(loaded, **how, epsilons=epsilons)
    if not as_json:
        print_metrics(metrics, unit)
        print_classes(metrics)
        print_table(worst_case_table(metrics, unit))
        print_table(posthoc_table(metrics.posthoc))
    kept = evaluation_file(loaded, on=on, threshold=how["threshold"])
    found = _attack(loaded, attacks, seed=seed, show=not as_json, samples=attack_samples, epsilons=epsilons, **how)
    if as_json:
        typer.echo(strict_json(asdict(metrics) | found))
    elif kept or found:
        typer.echo(f"\nKept in {kept}" if kept else f"\nSee it with: lipscale report {run}")


def _attacks_of(text: str, epsilons: tuple[float, ...] | None) -> list[str]:
    """Attacks from a flag; those on uncertainty by their names, or all at once."""
    from lipscale.attacks import UNCERTAINTY_ATTACKS

    names = [name.strip() for name in text.split(",")]
    known = ("none", *ON_ACCURACY, "uncertainty", *UNCERTAINTY_ATTACKS)
    if unknown := [name for name in names if name not in known]:
        raise UserError(f"--attack: expected {', '.join(known[:-1])} or {known[-1]}, got {unknown[0]!r}")
    attacks = list(UNCERTAINTY_ATTACKS) if "uncertainty" in names else [n for n in names if n in UNCERTAINTY_ATTACKS]
    attacks = [name for name in names if name in ON_ACCURACY] + attacks
    if attacks and epsilons and not any(epsilons):
        problem = "an attack needs a radius above 0; with --attack none only certificates are measured"
        raise UserError(f"--epsilon: {problem}")
    return attacks


def threshold_of(run: "Run", probability: float | None, positive: str | None) -> Any:
    """A threshold from its two flags, if they are given."""
    from lipscale.certificates import Threshold

    if probability is None and positive is not None:
        raise UserError("--positive says what --threshold is about: give both")
    if probability is None:
        return None
    found = Threshold.of(run.classes, probability, positive, counts=run.metrics.counts)
    told = f"{run.classes[found.positive]!r} is answered from a probability of {probability:g} on"
    typer.echo(told if positive else f"{told}: the rarer class, or name one with --positive", err=True)
    return found


def _attack(run: "Run", attacks: list[str], *, seed: int, show: bool, **how: Any) -> dict[str, Any]:
    """Attack a run behind a progress display: accuracy first, then uncertainty; what was found, for JSON."""
    from lipscale.certificates import Attack
    from lipscale.cli.progress import AttackProgress
    from lipscale.cli.show import print_robustness, print_table
    from lipscale.report.uncertainty import attacks_table
    from lipscale.runs import attack_run, attack_run_uncertainty

    found: dict[str, Any] = {}
    unit = run.preprocessing.unit
    try:
        for name in (name for name in attacks if name in ON_ACCURACY):
            with AttackProgress() as progress:
                robustness = attack_run(run, Attack(name, seed=seed), on_progress=progress, **how)  # type: ignore[arg-type]
            found["robustness"] = asdict(robustness)
            if show:
                print_robustness(robustness, unit, certified=run.metrics.is_certified)
        if names := [name for name in attacks if name not in ON_ACCURACY]:
            with AttackProgress() as progress:
                uncertainty = attack_run_uncertainty(run, names, seed=seed, on_progress=progress, **how)
            found["uncertainty"] = asdict(uncertainty)
            if show:
                print_table(attacks_table(uncertainty, unit))
    except KeyboardInterrupt:
        raise Stopped("Stopped. The same command goes on where it was.", 130) from None
    return found


def epsilons_of(text: str) -> tuple[float, ...]:
    """Radii from a flag."""
    return Settings.checked({"epsilons": text}, place={"epsilons": "--epsilon"}).epsilons


def audit(
    run: RunFolder,
    samples: Annotated[int, typer.Option(min=2, help="Test samples to attack.")] = 500,
    pairs: Annotated[int, typer.Option(min=1, help="Random pairs whose slope is measured.")] = 10_000,
    steps: Annotated[int, typer.Option(min=1, help="Steps of each attack.")] = 50,
    seconds: Annotated[float, typer.Option(min=1, help="About how long it may take; the rest is left out.")] = 60,
    seed: Annotated[int, typer.Option(min=0, help="Fixes everything that is random.")] = 0,
    data_dir: DataDir = None,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Try to break a run's certificate; exit code 1 if anything gives.

    Attacks the class and the confidence of test samples with APGD at just under their certified radius (and with
    AutoAttack on a subset, where the extra `attack` is installed), and searches for slopes above the proven bound: by
    random pairs, by gradient ascent on pairs and by power iteration on the Jacobian. It takes a minute at most, more
    or less a batch; `--seconds 600` gives it ten.
    """
    start = time.monotonic()
    from lipscale.certificates.audits import audit, verdict
    from lipscale.cli.progress import AttackProgress
    from lipscale.runs import first_test_samples, load
    from lipscale.training.defaults import is_small
    from lipscale.training.hardware import one_thread

    loaded = load(run, device=device)
    if loaded.settings.method not in CONSTRAINED:
        raise UserError(f"{run} is unconstrained (method {loaded.settings.method}) and carries no certificate to audit")
    inputs, _ = first_test_samples(loaded, samples, data_dir=data_dir)
    inputs = inputs.to(next(loaded.net.parameters()).device)
    with AttackProgress() as progress, one_thread(when=is_small(loaded.net, len(inputs))):
        result = audit(
            loaded.net,
            inputs,
            pairs=pairs,
            steps=steps,
            autoattack_samples=50 if inputs.ndim == 4 else 0,  # AutoAttack takes pictures only
            seed=seed,
            seconds=seconds - (time.monotonic() - start),  # what it took to load the run is gone
            on_progress=progress,
        )
    if as_json:
        typer.echo(json.dumps(asdict(result), indent=2))
    else:
        for name, value in asdict(result).items():
            typer.echo(f"{name:10}  {value if isinstance(value, bool) else f'{value:.7g}'}")
        typer.echo(verdict(result))
    if result.violations:
        raise typer.Exit(1)


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
