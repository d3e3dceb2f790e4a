"""Post-hoc calibrators on a finished run: what each would change, fitted on the test part in turns or on D_cal."""

import logging
from collections.abc import Sequence
from pathlib import Path

from lipscale.certificates import prove
from lipscale.data import split_calibration
from lipscale.errors import UserError
from lipscale.runs import folder as files
from lipscale.runs.assembly import device_of, read_data
from lipscale.runs.evaluation import certify_samples
from lipscale.runs.posthoc import SOME, Posthoc, logits_at_zero, try_calibrators
from lipscale.runs.run import Run

log = logging.getLogger("lipscale")


def recalibrate_run(
    run: Run, names: Sequence[str] = SOME, *, on_calibration: bool = False, data_dir: Path | None = None
) -> Posthoc:
    """What post-hoc calibrators would change about a run, measured on its test part.

    Args:
        run: A finished run; nothing of it is changed.
        names: Among `lipscale.calibration.posthoc.CALIBRATORS`.
        on_calibration: Fit on the run's calibration part, drawn again by its seed, instead of the test part in turns.
        data_dir: Where the data sets lie now, if not where they were.

    Returns:
        A row for each calibrator.

    Example:
        >>> import lipscale
        >>> from lipscale.runs import recalibrate_run
        >>> recalibrate_run(lipscale.load("runs/digits-mlp-list-1")).rows["temperature"].ece  # doctest: +SKIP
        0.0171
    """
    settings, device = run.settings, device_of(run.net)
    if on_calibration and (settings.method != "list" or settings.cross_fit):
        why = "all its samples took turns in it" if settings.cross_fit else f"method {settings.method} needs none"
        raise UserError(f"{run.folder} has no calibration part ({why}): fit on the test part in turns")
    dataset, _ = read_data(settings, stored=run.preprocessing, classes=run.classes, data_dir=data_dir)
    digest = files.read_json(run.folder / files.DATA, files.StoredData).digest
    for name, part in (("training", dataset.train), ("test", dataset.test)):
        if digest and (name == "test" or on_calibration) and digest.get(name) != part.digest():
            log.warning(f"the {name} data of {run.folder} are not what they were when it was trained")
    proof, calibration = prove(run.net, run.preprocessing.input_shape), None
    if on_calibration:
        fraction = settings.calibration_fraction or 0.0
        _, held_out = split_calibration(dataset.train, fraction, seed=settings.seed, classes=run.classes)
        calibration = certify_samples(proof, held_out.to(device)).logits, held_out.labels.long().to(device)
        if run.metrics.phase2_epochs:
            log.warning(
                f"Phase II of {run.folder} trained on the calibration part too: what is fitted on it is too optimistic"
            )
    return try_calibrators(
        certify_samples(proof, dataset.test.to(device)),
        dataset.test.labels.long().to(device),
        names,
        at_zero=logits_at_zero(proof, run.preprocessing.input_shape),
        epsilons=settings.epsilons,
        calibration=calibration,
        tolerance=settings.calibration_tolerance,
    )
