"""A comparison to look at: the table on the terminal, and the page."""

from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from importlib.resources import files

from jinja2 import Environment
from markupsafe import Markup

from lipscale.certificates import epsilon_names
from lipscale.experiments.choice import RULE, choose, log_loss
from lipscale.experiments.compare import ATTACKED, Candidate, Comparison
from lipscale.experiments.compare_figure import compared
from lipscale.experiments.table_models import LINEAR, TABLE_MODELS
from lipscale.metrics.verdict import percent, points
from lipscale.report.standings import Entry, ranked
from lipscale.report.theme import as_svg
from lipscale.runs.headline import Headline
from lipscale.training.epoch import counted

TREES = [name for name in TABLE_MODELS if name != LINEAR]


def entries_of(candidates: Sequence[Candidate]) -> list[Entry]:
    """The lines of the table, from the lowest log-loss on."""
    return ranked([_entry(candidate) for candidate in candidates])


def _entry(candidate: Candidate) -> Entry:
    accuracy, error, limit, ece, bound = (
        candidate.mean(value) or 0.0
        for value in (
            lambda seed: seed.scores.accuracy,
            lambda seed: seed.scores.calibration_error,
            lambda seed: seed.scores.calibration_error_limits[1],
            lambda seed: seed.scores.ece,
            lambda seed: seed.scores.ece_limit,
        )
    )
    seconds = candidate.mean(lambda seed: seed.seconds) or 0.0
    proven, attacked = (candidate.mean(value) for value in (lambda s: s.certified, lambda s: s.attacked))
    cells = {
        "accuracy": (accuracy, percent(accuracy)),
        "log-loss": (log_loss(candidate), f"{log_loss(candidate):.4f}"),
        "calibration error": (limit, f"{points(error)}, at most {points(limit, unit=False)}"),
        "ECE (limit)": (None, f"{ece:.4f} ({bound:.4f})"),
        "certified": (proven, "none" if proven is None else percent(proven)),
        "attacked": (attacked, "n/a" if attacked is None else percent(attacked)),
        "CPU time": (seconds, f"{seconds:.1f} s"),
    }
    return Entry(candidate.name, cells, _verdict(candidate))


def _verdict(candidate: Candidate) -> Headline:
    """What the seeds agree on, or how many of them are calibrated."""
    found = [seed.scores.calibrated for seed in candidate.seeds]
    within = f"calibrated to within {points(candidate.seeds[0].scores.calibration_tolerance)}"
    if len(set(found)) > 1:
        return Headline(f"{within} in {found.count(True)} of {len(found)} seeds, not in {found.count(False)}", "open")
    named: dict[bool | None, Headline] = {
        True: Headline(within, "good"),
        False: Headline(f"not {within}", "bad"),
        None: Headline("undecided: too few test samples", "open"),
    }
    return named[found[0]]


def texts_of(entries: Sequence[Entry]) -> list[list[str]]:
    """The table for a terminal, its head first: the page has room for more."""
    names = [name for name in entries[0].marks if name != "calibration error"]
    answer = {"good": "yes", "bad": "no", "open": "open"}
    body = []
    for entry in entries:
        marks = [entry.marks[name] for name in names]
        body.append([entry.name, *(f"{text}{' *' * best}" for text, best in marks), answer[entry.verdict.tone]])
    return [["", *names, "calibrated"], *body]


def notes_of(comparison: Comparison, candidates: Sequence[Candidate]) -> list[str]:
    """What a reader must know of the columns."""
    test = len(comparison.dataset.test)
    notes = [
        f"Always the commonest class: right in {percent(comparison.majority_rate)} of {test:,} test samples.",
        f"Certified and attacked are accuracies at {epsilon_names([comparison.epsilon])[0]} (l2): proven on all "
        f"test samples, left by PGD on {min(ATTACKED, test)} of them. A limit is the most that the ECE of a calibrated "
        "model shows in 95 % of cases.",
        "The twin is the same network without a constraint, on all training data; scaled, it holds some of them back "
        "for its temperature. LiST does so for its L, and then trains on all.",
    ]
    names = {candidate.name for candidate in candidates}
    if names & {*TREES, LINEAR}:
        notes.append(
            "Trees have no gradient and no constant: neither PGD nor a certificate applies to them. Of logistic "
            "regression both are exact, by the distance from its planes. All get the same features, and one thread."
        )
    return notes


def page(comparison: Comparison, candidates: Sequence[Candidate]) -> str:
    """The page as text: whole by itself."""
    template, css = (
        (files("lipscale.report") / name).read_text(encoding="utf-8") for name in ("compare.html", "page.css")
    )
    chosen, sentences = choose(candidates, comparison.majority_rate)
    chart = compared(candidates, chosen)
    return (
        Environment(autoescape=True)
        .from_string(template)
        .render(
            title=f"lipscale compare: {comparison.dataset.name}",
            version=version("lipscale"),
            written=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
            about=f"Means over {counted(comparison.seeds, 'seed')}, one training and test part for all.",
            css=Markup(css),
            sentences=sentences,
            rule=RULE,
            chosen=chosen.name,
            entries=entries_of(candidates),
            chart=Markup(as_svg(chart.figure, salt=chart.name)),
            caption=" ".join(chart.caption),
            notes=notes_of(comparison, candidates),
        )
    )
