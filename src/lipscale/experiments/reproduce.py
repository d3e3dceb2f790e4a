"""The paper's tables, figures and claims: which runs each needs, and how they are written down."""

from collections.abc import Callable, Sequence
from dataclasses import astuple, fields
from pathlib import Path

from lipscale._files import write_atomically
from lipscale.attacks import require_autoattack
from lipscale.data import READERS, find_folder
from lipscale.errors import UserError
from lipscale.experiments import published, recipes
from lipscale.experiments.claims import Verdict, decide_claims
from lipscale.experiments.plan import Planned, Row, shared
from lipscale.experiments.profiles import Profile
from lipscale.experiments.results import Results
from lipscale.experiments.tables import (
    CALIBRATED,
    CONSTANT,
    Table,
    as_markdown,
    csv_text,
    make_table,
    markdown,
    measured,
    ranked,
    write_table,
)  # fmt: skip
from lipscale.runs.assembly import read_data

ROWS: dict[str, Callable[[Profile], list[Row]]] = {
    "table1": recipes.main_table,
    "table2": lambda profile: [*recipes.low_data_table(profile), *recipes.phase_table(profile)],
    "figures": recipes.figure_rows,
    "claims": recipes.all_rows,
}
ITEMS = (*ROWS, "all")
PICTURE = (3, 32, 32)  # every named set is one of pictures, of this shape or another

EXPLAINED = (
    "Accuracies and errors are in per cent, mean ± standard deviation over seeds; the best is bold, the second "
    'underlined. "Calibrated" counts the seeds whose ECE is not above the one-sided limit of a calibrated network, '
    'with the same allowance for a T* from a tenth of the data for every method; "strictly" is without it. AA is '
    "AutoAttack (l2) on a subset of the test set, CRA is certified accuracy on all of it."
)


def items_of(names: Sequence[str]) -> list[str]:
    """The items by name; `all` is every one."""
    for name in names:
        if name not in ITEMS:
            raise UserError(f"unknown item {name!r}; known: {', '.join(ITEMS)}")
    return list(ROWS) if "all" in names else [name for name in ROWS if name in names]


def plan_of(items: Sequence[str], profile: Profile) -> list[Planned]:
    """The runs that the items need, each once."""
    return shared(run for item in items for row in ROWS[item](profile) for run in row.runs)


def finished_items(profile: Profile, results: Results) -> list[str]:
    """The items of which every run is there."""
    return [item for item, rows in ROWS.items() if all(len(results.of(row)) == len(row.runs) for row in rows(profile))]


def require_data(plan: Sequence[Planned], data_dir: Path | None) -> None:
    """Say what is missing before any run starts, and how to get it."""
    named = {(run.settings.data, data_dir or run.settings.data_dir) for run in plan if run.settings.data in READERS}
    missing = sorted({name for name, place in named if find_folder(name, place) is None})
    if missing:
        how = "; ".join(f"{name}: {READERS[name].get}" for name in missing)
        raise UserError(f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not here. Get {how}")
    attacked = {run.settings.data: run.settings for run in plan if run.attack and run.attack.name == "autoattack"}
    for data, settings in attacked.items():
        shape = PICTURE if data in READERS else read_data(settings, data_dir=data_dir)[1].input_shape
        require_autoattack(shape)


def main_table(profile: Profile, results: Results) -> Table:
    """Tab. 1."""
    columns = (*measured(profile.attack), *CALIBRATED, CONSTANT)
    rows = [(row.group, row.name, results.of(row)) for row in recipes.main_table(profile)]
    return ranked(make_table(f"Methods on {profile.main}", "Method", columns, rows))


def ablation_tables(profile: Profile, results: Results) -> tuple[Table, Table]:
    """Tab. 2, top and bottom."""
    columns = (CONSTANT, *measured(profile.attack), *CALIBRATED)
    low, phases = (
        [(row.group, row.name, results.of(row)) for row in rows(profile)]
        for rows in (recipes.low_data_table, recipes.phase_table)
    )
    by_phase = make_table("LiST after Phase I and after Phase II", "Set, phase", columns, phases)
    return make_table(f"LiST on less of {profile.main}", "Setting", columns, low), ranked(by_phase, within_blocks=True)


def beside_the_paper(profile: Profile, results: Results) -> str:
    """Our means beside the paper's numbers, row by row, as Markdown."""
    named = [(row.name, row, published.MAIN_TABLE.get(row.name)) for row in recipes.main_table(profile)]
    low = zip(recipes.low_data_table(profile), published.LOW_DATA.items(), strict=True)
    named += [(f"{row.name} (paper: {size})", row, theirs) for row, (size, theirs) in low]
    rows = (row for data in profile.sets for row in recipes.phases(profile, data)[:2])
    phases = zip(rows, published.PHASES.items(), strict=True)
    named += [(f"{row.group} {row.name} (paper: {' '.join(key)})", row, theirs) for row, (key, theirs) in phases]
    columns = (*measured(profile.attack), CONSTANT)
    body = []
    for name, row, theirs in named:
        ours = [column.cell(results.of(row)) for column in columns]
        pairs = zip(ours, theirs or (None,) * len(columns), strict=True)
        shown = (("n/a" if a is None else f"{a.mean:.2f}", "n/a" if b is None else f"{b:g}") for a, b in pairs)
        body.append([name, *(f"{a} ({b})" for a, b in shown)])
    return markdown(["row", "accuracy", "ECE", "ESCE", "AA 0.5", "CRA 36/255", "L"], body)


def claims_as_markdown(verdicts: Sequence[Verdict]) -> str:
    """The claims as a table to read."""
    rows = ((v.claim, v.place, v.data, f"**{v.verdict}**", v.test, v.figures) for v in verdicts)
    head = ["claim", "paper", "data", "verdict", "test", "figures"]
    return markdown(head, ([cell.replace("|", "/") for cell in row] for row in rows))


def write(items: Sequence[str], profile: Profile, results: Results, out: Path) -> list[Path]:
    """Write what the items are made of, and RESULTS.md, which shows it all."""
    page = [f"# Results of the profile `{profile.name}`\n", f"{len(results)} finished runs. {EXPLAINED}\n"]
    written: list[Path] = []

    def put(name: str, text: str) -> None:
        write_atomically(out / name, text.encode())
        written.append(out / name)

    def put_table(name: str, table: Table) -> None:
        written.extend(write_table(table, out / name))
        page.append(f"## {table.title}\n\n{as_markdown(table)}")

    out.mkdir(parents=True, exist_ok=True)
    if "table1" in items:
        put_table("table1", main_table(profile, results))
    if "table2" in items:
        for name, table in zip(("low-data", "phases"), ablation_tables(profile, results), strict=True):
            put_table(f"table2-{name}", table)
    if "table1" in items and "table2" in items:
        beside = beside_the_paper(profile, results)
        put("beside-the-paper.md", beside)
        page.append(f"## Beside the paper\n\nOurs, and in brackets the paper's, in per cent (but for L).\n\n{beside}")
    if "figures" in items:
        from lipscale.experiments.figures import draw_figures  # matplotlib takes a second: only who draws imports it
        from lipscale.report.theme import save_figure

        page.append("## Figures\n")
        for drawn in draw_figures(profile, results):
            written += save_figure(drawn, out / "figures")
            page.append(f"![{drawn.title}](figures/{drawn.name}.png)\n\n" + "\n".join(drawn.caption) + "\n")
    if "claims" in items:
        verdicts = decide_claims(profile, results)
        put("claims.md", claims_as_markdown(verdicts))
        put("claims.csv", csv_text([field.name for field in fields(Verdict)], map(astuple, verdicts)))
        page.append(f"## Claims\n\n{claims_as_markdown(verdicts)}")
    put("RESULTS.md", "\n".join(page))
    return written
