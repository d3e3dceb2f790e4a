"""The command for sets of classes instead of one: conformal."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lipscale.cli.results import DataDir, Device, Json, RunFolder, epsilons_of

if TYPE_CHECKING:
    from lipscale.runs import ConformalResult


def conformal(
    run: RunFolder,
    alpha: Annotated[float, typer.Option(metavar="A", help="How often a set may miss the true class.")] = 0.1,
    epsilon: Annotated[
        str | None, typer.Option(help="Changes that robust sets withstand, such as 0.1,36/255; left out, plain sets.")
    ] = None,
    score: Annotated[
        str, typer.Option(metavar="threshold|class-conditional|aps|raps", help="What orders the classes.")
    ] = "threshold",
    penalty: Annotated[float, typer.Option(help="Of raps: the penalty of each rank.")] = 0.1,
    free: Annotated[int, typer.Option(help="Of raps: ranks without a penalty.")] = 1,
    splits: Annotated[int, typer.Option(min=1, help="Random halves of the test part that take their turn.")] = 1,
    attack_samples: Annotated[int, typer.Option(min=0, metavar="N", help="Samples to attack; 0 for none.")] = 200,
    seed: Annotated[int, typer.Option(min=0, help="Fixes the halves, the randomisation and the attack.")] = 0,
    data_dir: DataDir = None,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Sets of classes that hold the true one with probability 1 - alpha, also under attacks up to epsilon.

    They are calibrated on samples that trained nothing: those that `lipscale train --conformal-fraction 0.1` held out,
    or else one half of the test part, and are measured on the other one. Robust sets keep their promise for every
    change up to epsilon, by the certificate. A true class that an attack takes out of one is an error (exit code 1).
    aps and raps are randomised from the seed. See docs/CONFORMAL.md:

        lipscale conformal RUN --alpha 0.1

        lipscale conformal RUN --alpha 0.05 --epsilon 0.1,0.25 --attack-samples 1000
    """
    from lipscale.certificates import ConformalScore
    from lipscale.cli.progress import AttackProgress
    from lipscale.report.conformal import set_sizes
    from lipscale.report.theme import save_figure
    from lipscale.runs import conformal_run, load
    from lipscale.runs.folder import strict_json

    epsilons = epsilons_of(epsilon) if epsilon is not None else ()
    chosen = ConformalScore(score, penalty, free)  # type: ignore[arg-type]
    loaded = load(run, device=device)
    how: Any = {"splits": splits, "attack_samples": attack_samples, "seed": seed, "data_dir": data_dir}
    with AttackProgress() as progress:
        result = conformal_run(loaded, alpha=alpha, epsilons=epsilons, score=chosen, **how, on_progress=progress)
    drawn = set_sizes(result, loaded.preprocessing.unit)
    paths = [] if drawn is None else save_figure(drawn, run / "figures")
    if as_json:
        typer.echo(strict_json(result.summary() | asdict(result)))
        return
    _print(result, loaded.preprocessing.unit)
    if paths:
        typer.echo(f"\nFigure: {paths[0]}")


def _print(result: "ConformalResult", unit: str) -> None:
    """Coverage and sizes, one kind of set a line."""
    from lipscale.cli.show import print_texts

    name, plain = result.score.name, result.plain
    promise = "of each class" if name == "class-conditional" else "on average"
    typer.echo(f"Sets that hold the true class with probability {1 - result.alpha:g} {promise} ({name})")
    size = f"{result.calibration_size:,} samples, {result.calibrated_on}"
    typer.echo(
        f"Calibrated on {size}; {result.test_size:,} tested" + (f"; {result.splits} splits" * (result.splits > 1))
    )
    low, high = result.expected_coverage
    typer.echo(f"By chance alone coverage on so few lies between {low:.3f} and {high:.3f}.\n")
    rows = [["sets", "epsilon", "inputs", "coverage", "95 % interval", "mean size"]]
    rows.append(["plain", "", "as they are", *_cells(plain)])
    for eps, found in result.at.items():
        rows.append(["robust", eps, "as they are", *_cells(found.robust)])
        if found.box_size is not None:
            rows.append(["published box", eps, "as they are", "", "", f"{found.box_size:.3f}"])
        if found.plain_under_attack and found.robust_under_attack:
            rows.append(["plain", eps, f"{found.attacked} attacked", *_cells(found.plain_under_attack)])
            rows.append(["robust", eps, f"{found.attacked} attacked", *_cells(found.robust_under_attack)])
    note = f"Epsilon is in {unit}." if result.at else "With --epsilon, sets that also withstand attacks."
    print_texts(rows, note)


def _cells(found: Any) -> list[str]:
    low, high = found.interval
    return [f"{found.coverage:.4f}", f"{low:.4f} to {high:.4f}", f"{found.size:.3f}"]
