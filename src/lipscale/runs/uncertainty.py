"""Attacks on the uncertainty of a finished run; the result is kept in its folder."""

import dataclasses
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from lipscale.attacks import UNCERTAINTY_ATTACKS
from lipscale.certificates import Threshold, UncertaintyUnderAttack, attack_samples, attack_uncertainty
from lipscale.certificates.attacked import Progress
from lipscale.errors import UserError
from lipscale.runs import folder as files
from lipscale.runs.assembly import box_of
from lipscale.runs.run import Run, evaluation_file, labelled_samples


def attack_run_uncertainty(
    run: Run,
    attacks: Sequence[str] = tuple(UNCERTAINTY_ATTACKS),
    *,
    samples: int,
    seed: int = 0,
    on: str | Path | None = None,
    threshold: Threshold | None = None,
    epsilons: Sequence[float] | None = None,
    data_dir: Path | None = None,
    on_progress: Progress = lambda what, done, total: None,
) -> UncertaintyUnderAttack:
    """Attack the uncertainty of a subset of the test part, or of new data, and keep what was found.

    Args:
        run: A finished run.
        attacks: Among `lipscale.attacks.UNCERTAINTY_ATTACKS`.
        samples: How many samples to attack.
        seed: Fixes which, and everything that is random in the attacks.
        on: New labelled data instead of the test part.
        threshold: Decides only on the file that the result goes to, as in `evaluate_run`: probabilities have none.
        epsilons: Radii; by default the run's own.
        data_dir: Where the data sets lie now, if not where they were.
        on_progress: Called with what is being done, how much of it is done, and out of how much.

    Returns:
        The metrics before and after, beside what is proven. They go to uncertainty.json; with `on` or a threshold, to
        where `evaluation_file` says.

    Example:
        >>> import lipscale
        >>> from lipscale.runs import attack_run_uncertainty
        >>> run = lipscale.load("runs/digits-mlp-list-1")  # doctest: +SKIP
        >>> attack_run_uncertainty(run, ["ace"], samples=200).at["0.25"].certified.nll  # doctest: +SKIP
        0.41
    """
    test = labelled_samples(run, on, data_dir=data_dir)
    found = attack_uncertainty(
        run.net,
        attack_samples(test, samples, seed=seed),
        epsilons=[eps for eps in epsilons or run.settings.epsilons if eps > 0],
        attacks=attacks,
        seed=seed,
        box=box_of(run.preprocessing),
        on_progress=on_progress,
    )
    found = dataclasses.replace(found, test_size=len(test))
    if file := evaluation_file(run, on=on, threshold=threshold):
        files.write_json(file, files.read_json(file) | {"uncertainty": asdict(found)})
    else:
        files.write_json(run.folder / files.UNCERTAINTY, asdict(found))
    return found


def stored_uncertainty(folder: Path) -> UncertaintyUnderAttack | None:
    """What earlier attacks found; none where there were none, or it is damaged: they can be made again."""
    try:
        found: UncertaintyUnderAttack = files.read_json(folder / files.UNCERTAINTY, UncertaintyUnderAttack)
        return found
    except UserError:
        return None
