"""A user's own grid, methods x offsets x constants x seeds, from a YAML file."""

import itertools
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from lipscale.errors import UserError
from lipscale.experiments.plan import AttackBudget, Planned, Row
from lipscale.experiments.results import Results
from lipscale.experiments.tables import CONSTANT, OWN_VERDICT, Table, make_table, measured, ranked, write_table
from lipscale.runs.settings_file import check_names, read_yaml
from lipscale.settings import CONSTRAINED, Positive, Settings

SYMBOLS = {"lipschitz": "L", "offset": "xi"}
SWEPT = {"method": "methods", "offset": "offsets", "lipschitz": "constants", "seed": "seeds", "out": "`out`"}


class Grid(BaseModel):
    """What to sweep over: offsets apply to list and fixed, constants to fixed alone."""

    model_config = ConfigDict(extra="forbid")
    settings: dict[str, Any] = {}  # of every run, as in a settings file
    methods: tuple[str, ...] = Field(("list",), min_length=1)
    offsets: tuple[Annotated[float, Field(ge=0, allow_inf_nan=False)], ...] = Field((0.0,), min_length=1)
    constants: tuple[Positive, ...] = Field((1.0,), min_length=1)
    seeds: tuple[Annotated[int, Field(strict=True, ge=0)], ...] = Field((0,), min_length=1)
    attack: AttackBudget | None = None


def read_grid(path: Path) -> Grid:
    """The grid in a YAML file; what is wrong with it is named."""
    values, _ = read_yaml(path, what="a grid", check=_check_plain)
    try:
        return Grid.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "the file"
        raise UserError(f"{path}: {place}: {first['msg']}; known: {', '.join(Grid.model_fields)}") from None


def _check_plain(path: Path, node: Any, seen: set[int] | None = None) -> None:
    """Names stand once, and so does everything else: an alias could stand for a billion values."""
    seen = set() if seen is None else seen
    if id(node) in seen:
        raise UserError(f"{path}, line {node.start_mark.line + 1}: aliases (*name) are not taken here; write it out")
    seen.add(id(node))
    if isinstance(node, yaml.MappingNode):
        check_names(path, node)
    for part in node.value if isinstance(node, yaml.CollectionNode) else ():
        for each in part if isinstance(part, tuple) else (part,):  # a mapping's parts are pairs
            _check_plain(path, each, seen)


def rows_of(grid: Grid) -> list[Row]:
    """A row for each method and value that it has, a run for each seed."""
    if twice := [f"{name} -> {key}" for name, key in SWEPT.items() if name in grid.settings]:
        raise UserError(f"the grid's settings name what the grid itself decides: {', '.join(twice)}")
    rows = []
    for method in dict.fromkeys(grid.methods):
        constants = dict.fromkeys(grid.constants) if method == "fixed" else (None,)
        offsets = dict.fromkeys(grid.offsets) if method in CONSTRAINED else (None,)
        for constant, offset in itertools.product(constants, offsets):
            swept = {name: value for name, value in (("lipschitz", constant), ("offset", offset)) if value is not None}
            values = {**grid.settings, "method": method, **swept}
            name = " ".join([method, *(f"{SYMBOLS[setting]} = {value:g}" for setting, value in swept.items())])
            runs = (
                Planned(Settings.checked({**values, "seed": seed}), grid.attack) for seed in dict.fromkeys(grid.seeds)
            )
            rows.append(Row(name, tuple(runs)))
    return rows


def table_of(rows: list[Row], results: Results) -> Table:
    """What was measured, the best of each column marked; a column that no run has a value for is left out."""
    attack = next((run.attack for row in rows for run in row.runs if run.attack is not None), AttackBudget())
    columns = [
        column
        for column in (*measured(attack), OWN_VERDICT, CONSTANT)
        if any(column.value(result) is not None for row in rows for result in results.of(row))
    ]
    return ranked(make_table("Sweep", "Run", columns, [("", row.name, results.of(row)) for row in rows]))


def write(rows: list[Row], results: Results, out: Path) -> list[Path]:
    """The table in three formats, and the accuracy-robustness front."""
    from lipscale.experiments.fronts import front  # matplotlib takes a second: only who draws imports it
    from lipscale.report.theme import save_figure

    drawn = front([(row.name, results.of(row)) for row in rows])
    return [
        *write_table(table_of(rows, results), out / "table"),
        *(save_figure(drawn, out) if drawn is not None else []),
    ]
