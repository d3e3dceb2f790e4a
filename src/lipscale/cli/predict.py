"""The command that answers: predict."""

from pathlib import Path
from typing import Annotated, Any

import typer

from lipscale.cli.results import DataDir, Device, Json, Positive, RunFolder, Threshold, epsilons_of, threshold_of
from lipscale.errors import UserError
from lipscale.settings import CONSTRAINED

INPUTS = "Pictures, folders of them, .csv or .parquet tables, .npy or .npz arrays (x)."
KEEP = "Columns of the tables to repeat in the answers: id,name."
RADIUS_OF = "How far may each of these columns move, all else equal, in its own units?"
MANY = 100  # files that are worth a bar


def predict(
    run: RunFolder,
    files: Annotated[list[Path] | None, typer.Argument(metavar="FILE...", help=INPUTS)] = None,
    keep: Annotated[list[str] | None, typer.Option(metavar="NAMES", help=KEEP)] = None,
    radius_of: Annotated[list[str] | None, typer.Option(metavar="NAMES", help=RADIUS_OF)] = None,
    radii: Annotated[bool, typer.Option("--radii", help="The same for all columns of numbers.")] = False,
    epsilon: Annotated[str | None, typer.Option(help="Print the certified range of each probability too.")] = None,
    threshold: Threshold = None,
    positive: Positive = None,
    out: Annotated[Path | None, typer.Option(help="Write a .csv, .parquet or .json file instead.")] = None,
    data_dir: DataDir = None,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Print class, probability and certified radius for files, or for the first ten test samples.

    Files hold raw values, as the training's did. `--out` and `--json` also have the probability of every class
    (p_CLASS). The truth is repeated where a file has it (true_NAME): the label's column, y of an .npz file, or the
    class folder of a picture.

    No change of the input that is smaller than the certified radius (in l2 norm) can change the class. The input is
    what the network sees: pictures are converted and resized to it first. With `--epsilon 0.1` the range is printed
    in which the probability provably stays under every change up to 0.1, and with `--radius-of amount` how far this
    one column may move, all else equal, in its own units. Rows with numbers far outside of what the run was trained
    on, or with categories that it has not seen, are named (`outside`).

        lipscale predict RUN new.csv --keep id --radii --out answers.csv
    """
    from lipscale.runs import load
    from lipscale.runs.predict import ALL, FORMATS, predict_test_samples

    if out is not None and out.suffix not in FORMATS:
        raise UserError(f"--out {out}: expected a name that ends in {', '.join(FORMATS[:-1])} or {FORMATS[-1]}")
    kept, single = ([part.strip() for text in named or () for part in text.split(",")] for named in (keep, radius_of))
    largest = epsilons_of(epsilon)[0] if epsilon else None
    loaded = load(run, device=device)
    how: Any = {"epsilon": largest, "threshold": threshold_of(loaded, threshold, positive)}
    if files:
        answers = _answers(loaded, files, keep=kept, radii_of=[ALL] if radii else single, **how)
    elif kept or single or radii:
        raise UserError("--keep, --radius-of and --radii speak of columns of tables: name the files to answer for")
    else:
        answers = predict_test_samples(loaded, 10, data_dir=data_dir, **how)
    _show(answers, out, as_json=as_json, certified=loaded.settings.method in CONSTRAINED)


def _answers(run: Any, files: list[Path], **how: Any) -> list[Any]:
    """Answer for files, behind a bar where there are many."""
    from lipscale.cli.progress import Counting
    from lipscale.runs.predict import predict_files

    with Counting(least=MANY) as progress:
        return predict_files(run, files, on_progress=progress.count, **how)


def _show(answers: list[Any], out: Path | None, *, as_json: bool, certified: bool) -> None:
    from lipscale._files import write_atomically
    from lipscale.cli.show import print_predictions
    from lipscale.runs.predict import as_bytes

    if out is not None:
        write_atomically(out, as_bytes(answers, out.suffix))
        typer.echo(f"Wrote {len(answers)} predictions to {out}", err=True)
    elif as_json:
        typer.echo(as_bytes(answers, ".json").decode(), nl=False)
    else:
        print_predictions(answers, certified=certified)
