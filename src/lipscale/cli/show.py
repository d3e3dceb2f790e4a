"""Results as tables on the screen."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from lipscale.certificates.robustness import Robustness
from lipscale.cli.wording import as_commands, printable
from lipscale.metrics import class_advice
from lipscale.report.classes import class_rows
from lipscale.report.tables import cells
from lipscale.report.uncertainty import TextTable
from lipscale.report.verdict import ATTACK_NAMES, verdict
from lipscale.runs.evaluation import Metrics
from lipscale.runs.headline import first_numbers, headline
from lipscale.runs.predict import Prediction

MOST_CLASSES = 12  # lines
TONES = {"good": "bold green", "bad": "bold red", "open": "bold yellow"}


def _table(*columns: str) -> Table:
    return Table(*columns, box=None, padding=(0, 2, 0, 0))


def print_metrics(metrics: Metrics, unit: str) -> None:
    """A run's metrics, one a line, then the verdict."""
    table = _table("", "", "95 % interval")
    for name, cell in cells(metrics).items():
        table.add_row(name, *cell)
    console = Console()
    console.print(table)
    console.print()
    for sentence in verdict(metrics, unit):
        console.print(as_commands(sentence), highlight=False, markup=False)


def print_classes(metrics: Metrics) -> None:
    """A line for each class, or for those with the smallest recall where there are many."""
    rows = class_rows(metrics, most=MOST_CLASSES, brief=True)
    if not rows:
        return
    table = _table(*rows[0])
    for row in rows:
        table.add_row(*map(printable, row.values()))
    many = len(metrics.classes) > len(rows)
    Console().print(f"\n{f'The {len(rows)} classes with the smallest recall' if many else 'Class by class'}:")
    Console().print(table)


def print_table(found: TextTable | None) -> None:
    """A table with its title above and its remark below, if there is one."""
    if found is not None:
        Console().print(f"\n{found.title}:", highlight=False, markup=False)
        print_texts([found.head, *found.rows], found.note)


def print_first_sight(metrics: Metrics, *, weighted: bool) -> None:
    """The verdict in a line, the numbers that people come for, and what to do about classes that are missed."""
    console, (text, tone) = Console(), headline(metrics)
    console.print(f"\n{text[0].upper()}{text[1:]}.\n", style=TONES[tone], highlight=False, markup=False)
    table = _table("", "", "")
    table.show_header = False
    for name, cell in first_numbers(metrics).items():
        # in fewer words: with a class's name the notes just fit into 80 columns
        table.add_row(name.replace("certified accuracy", "certified"), cell.value, f"[dim]{printable(cell.note)}[/dim]")
    console.print(table)
    if about_classes := class_advice(metrics, metrics.intervals.accuracy, weighted=weighted):
        console.print(f"\nBeware: {as_commands(about_classes)}.", highlight=False, markup=False)


def print_texts(rows: Sequence[Sequence[str]], note: str) -> None:
    """Rows of text as a table, the first one its head, and a note below."""
    head, *body = rows
    table = Table(box=None, padding=(0, 1, 0, 0))  # comparisons are wide: a narrow terminal should break no word
    for name, *below in zip(head, *body, strict=True):
        table.add_column(
            printable(name), min_width=max(len(word) for cell in (name, *below) for word in cell.split(" "))
        )
    for row in body:
        table.add_row(*map(printable, row))
    Console().print(table)
    if note:
        Console().print(f"\n{note}", highlight=False, markup=False)


def print_robustness(result: Robustness, unit: str, *, certified: bool = True) -> None:
    """Certified and empirical robust accuracy, then calibration under attack, one epsilon a line."""
    console = Console()
    subset = f"{result.samples} of {result.test_size} test samples (seed {result.seed})"
    console.print(f"\nAttacks on {subset}; epsilon in {unit}\n", highlight=False)
    accuracy = _table("epsilon", "certified accuracy", f"left by {ATTACK_NAMES[result.attack]}", "95 % interval")
    calibration = _table("epsilon", "ECE", "over", "under", "maximum", "proven mean confidence")
    for eps, row in result.at.items():
        low, high = row.interval
        proven = f"{row.certified_accuracy:.4f}" if certified else "none"
        accuracy.add_row(eps, proven, f"{row.robust_accuracy:.4f}", f"{low:.4f} to {high:.4f}")
        found = row.calibration
        errors = (f"{kind.ece:.4f}" for kind in (found.clean, found.over, found.under, found.maximum))
        low, high = found.certified_confidence
        calibration.add_row(eps, *errors, f"{low:.4f} to {high:.4f}" if certified else "none")
    console.print(accuracy)
    console.print("\nECE after attacks on confidence that keep every class:", highlight=False)
    console.print(calibration)


def print_predictions(answers: list[Prediction], *, certified: bool = True) -> None:
    """Predictions, one a line, with what is certified and with the columns that were kept, the truth among them."""
    rows = [_shown(answer, certified=certified) for answer in answers]
    names = list(dict.fromkeys(name for row in rows for name in row))
    if not any(row.get("outside") for row in rows):
        names = [name for name in names if name != "outside"]
    table = _table(*map(printable, names))
    for row in rows:
        table.add_row(*(printable(row.get(name, "")) for name in names))
    Console().print(table)
    radii = f"Radii are l2 distances in {answers[0].unit}."
    Console().print(radii if certified else "The network is unconstrained and carries no certificate.")


def _shown(answer: Prediction, *, certified: bool) -> dict[str, str]:
    """What of an answer is shown, by the heads of the columns."""
    row = {"input": answer.source, "class": answer.label, "probability": f"{answer.probability:.4f}"}
    if certified:
        row["certified radius"] = f"{answer.radius:.4f}" if answer.radius < 1e4 else f"{answer.radius:.4g}"
        if answer.lowest is not None:
            row["certified range"] = f"{answer.lowest:.4f} to {answer.highest:.4f}"
        row |= {f"radius of {name}": "" if r is None else f"{r:.4g}" for name, r in answer.radii.items()}
    row |= {"outside": answer.outside or ""}
    return row | {name: "" if value is None else str(value) for name, value in answer.kept.items()}
