"""The command that tells another data set from a run's own: ood."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lipscale.cli.results import DataDir, Device, Json, RunFolder, epsilons_of

if TYPE_CHECKING:
    from lipscale.runs import OutlierResult


def ood(
    run: RunFolder,
    against: Annotated[
        str,
        typer.Option(metavar="DATA", help="What is not of the run's kind: a set's name, a folder, a table or an .npz."),
    ],
    epsilon: Annotated[
        str | None, typer.Option(help="Changes against which to certify, and to attack, such as 0.1,36/255.")
    ] = None,
    attack_samples: Annotated[int, typer.Option(min=0, metavar="N", help="Samples of either set to attack.")] = 200,
    seed: Annotated[int, typer.Option(min=0, help="Fixes the attacked samples and the attack.")] = 0,
    data_dir: DataDir = None,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """How well a run tells what is out of its distribution from its test part: AUROC and FPR95, certified ones too.

    By the largest probability, the energy (log-sum-exp of the logits), the largest logit, and the distance of the
    features to the nearest class mean. With --epsilon, also the least AUROC that any attack of that size can leave, and
    what a real one leaves on some samples. An attack that beats the certificate is an error (exit code 1). Pictures of
    another size or colour are brought to the run's, and the output says so. See docs/OOD.md:

        lipscale ood RUN --against fashion-mnist --epsilon 0.1
    """
    from lipscale.cli.progress import AttackProgress
    from lipscale.runs import load, outliers_run
    from lipscale.runs.folder import strict_json

    loaded = load(run, device=device)
    how: Any = {"epsilons": epsilons_of(epsilon) if epsilon is not None else (), "seed": seed, "data_dir": data_dir}
    with AttackProgress() as progress:
        result = outliers_run(loaded, against, **how, attack_count=attack_samples, on_progress=progress)
    if as_json:
        typer.echo(strict_json(asdict(result)))
    else:
        _print(result, loaded.preprocessing.unit)


def _print(result: "OutlierResult", unit: str) -> None:
    """A line for each score; then, at each epsilon, what is certified of it and what an attack left."""
    from lipscale.cli.show import print_texts

    converted = f" ({result.converted})" if result.converted else ""
    typer.echo(f"{result.inliers:,} test samples against {result.outliers:,} of {result.against}{converted}\n")
    rows = [["score", "AUROC", "95 % interval", "FPR95"]]
    for name, found in result.scores.items():
        low, high = found.interval
        rows.append([name, f"{found.clean.auroc:.4f}", f"{low:.4f} to {high:.4f}", f"{found.clean.fpr95:.4f}"])
    print_texts(rows, "Larger scores are inliers. FPR95: the outliers that pass where 95 % of the inliers do.")
    for eps in next(iter(result.scores.values())).certified:
        typer.echo(f"\nAUROC where outliers, inliers or both may be changed by {eps} in {unit}:\n")
        rows = [["score", "certified: outliers", "inliers", "both", "attacked: outliers", "inliers", "both"]]
        for name, found in result.scores.items():
            attacked = _aurocs(found.attacked[eps].attacked) if eps in found.attacked else ["", "", ""]
            rows.append([name, *_aurocs(found.certified[eps]), *attacked])
        print_texts(
            rows, f"Certified: at least so much, on all samples. Attacked: up to {result.attacked} of either set."
        )


def _aurocs(at: Any) -> list[str]:
    return [f"{part.auroc:.4f}" for part in (at.outliers, at.inliers, at.both)]
