"""The paper's tables, figures and claims: which runs each needs, and how they are written down."""

from collections.abc import Callable, Sequence
from dataclasses import astuple, fields
from pathlib import Path

from lipscale._files import write_atomically
from lipscale.attacks import require_autoattack
from lipscale.data import READERS, find_folder
from lipscale.errors import UserError
from lipscale.experiments import published, recipes, tables
from lipscale.experiments.claims import Verdict, decide_claims
from lipscale.experiments.plan import Planned, Row, shared
from lipscale.experiments.profiles import Profile
from lipscale.experiments.results import Results
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
        require_autoattack(PICTURE if data in READERS else read_data(settings, data_dir=data_dir)[1].input_shape)


def paper_tables(profile: Profile, results: Results) -> dict[str, Callable[[], tables.Table]]:
    """Tab. 1, and Tab. 2 in its two parts, by the names of their files."""
    scores, verdicts, constant = tables.measured(profile.attack), tables.CALIBRATED, tables.CONSTANT

    def table(title: str, corner: str, columns: Sequence[tables.Column], rows: Sequence[Row]) -> tables.Table:
        return tables.make_table(title, corner, columns, [(row.group, row.name, results.of(row)) for row in rows])

    main = f"Methods on {profile.main}", "Method", (*scores, *verdicts, constant), recipes.main_table(profile)
    columns = (constant, *scores, *verdicts)
    low = f"LiST on less of {profile.main}", "Setting", columns, recipes.low_data_table(profile)
    phases = "LiST after Phase I and after Phase II", "Set, phase", columns, recipes.phase_table(profile)
    return {
        "table1": lambda: tables.ranked(table(*main)),
        "table2-low-data": lambda: table(*low),
        "table2-phases": lambda: tables.ranked(table(*phases), within_blocks=True),
    }


def beside_the_paper(profile: Profile, results: Results) -> str:
    """Our means beside the paper's numbers, row by row, as Markdown."""
    named = [(row.name, row, published.MAIN_TABLE.get(row.name)) for row in recipes.main_table(profile)]
    low = zip(recipes.low_data_table(profile), published.LOW_DATA.items(), strict=True)
    named += [(f"{row.name} (paper: {size})", row, theirs) for row, (size, theirs) in low]
    rows = (row for data in profile.sets for row in recipes.phases(profile, data)[:2])
    phases = zip(rows, published.PHASES.items(), strict=True)
    named += [(f"{row.group} {row.name} (paper: {' '.join(key)})", row, theirs) for row, (key, theirs) in phases]
    columns = (*tables.measured(profile.attack), tables.CONSTANT)
    body = [["row", "accuracy", "ECE", "ESCE", "AA 0.5", "CRA 36/255", "L"]]
    for name, row, theirs in named:
        ours = [column.cell(results.of(row)) for column in columns]
        pairs = zip(ours, theirs or (None,) * len(columns), strict=True)
        shown = (("n/a" if a is None else f"{a.mean:.2f}", "n/a" if b is None else f"{b:g}") for a, b in pairs)
        body.append([name, *(f"{a} ({b})" for a, b in shown)])
    return tables.markdown(body)


def claims_as_markdown(verdicts: Sequence[Verdict]) -> str:
    """The claims as a table to read."""
    rows = ((v.claim, v.place, v.data, f"**{v.verdict}**", v.test, v.figures) for v in verdicts)
    head = ["claim", "paper", "data", "verdict", "test", "figures"]
    return tables.markdown([head, *([cell.replace("|", "/") for cell in row] for row in rows)])


def write(items: Sequence[str], profile: Profile, results: Results, out: Path) -> None:
    """Write what the items are made of, and RESULTS.md, which shows it all."""
    page = [f"# Results of the profile `{profile.name}`\n", f"{len(results)} finished runs. {EXPLAINED}\n"]
    out.mkdir(parents=True, exist_ok=True)
    for name, make in paper_tables(profile, results).items():
        if name.split("-")[0] in items:
            table = make()
            tables.write_table(table, out / name)
            page.append(f"## {table.title}\n\n{tables.as_markdown(table)}")
    if "table1" in items and "table2" in items:
        beside = beside_the_paper(profile, results)
        write_atomically(out / "beside-the-paper.md", beside.encode())
        page.append(f"## Beside the paper\n\nOurs, and in brackets the paper's, in per cent (but for L).\n\n{beside}")
    if "figures" in items:
        from lipscale.experiments.figures import draw_figures  # matplotlib takes a second: only who draws imports it
        from lipscale.report.theme import save_figure

        page.append("## Figures\n")
        for drawn in draw_figures(profile, results):
            save_figure(drawn, out / "figures")
            page.append(f"![{drawn.title}](figures/{drawn.name}.png)\n\n" + "\n".join(drawn.caption) + "\n")
    if "claims" in items:
        verdicts = decide_claims(profile, results)
        rows = tables.csv_text([[field.name for field in fields(Verdict)], *map(astuple, verdicts)])
        write_atomically(out / "claims.csv", rows.encode())
        write_atomically(out / "claims.md", claims_as_markdown(verdicts).encode())
        page.append(f"## Claims\n\n{claims_as_markdown(verdicts)}")
    write_atomically(out / "RESULTS.md", "\n".join(page).encode())
