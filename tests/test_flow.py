"""The flow is the layout: every module imports only what comes before it."""

import ast
import re
from pathlib import Path

import lipscale

# as CONTRIBUTING.md and the package's docstring have it
FLOW = [
    *("errors", "_random", "_log", "_processes", "_files", "_stage", "_objectives", "settings"),
    *("data", "layers", "bounds", "models"),
    *("losses", "metrics", "calibration", "attacks", "certificates"),
    *("training", "runs", "sklearn", "lightning", "report", "serve", "experiments", "cli"),
]


def imported(path: Path) -> set[str]:
    """The parts of lipscale that a file imports, wherever in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "lipscale":
            parts = node.module.split(".")[1:]
            found |= {parts[0]} if parts else {alias.name for alias in node.names}
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("lipscale.")}
    return found


def test_imports_point_back_along_the_flow():
    root = Path(lipscale.__file__).parent
    wrong = []
    for path in sorted(root.rglob("*.py")):
        place = path.relative_to(root).parts[0].removesuffix(".py")
        if place in ("__init__", "__main__"):  # it names everything
            continue
        assert place in FLOW, f"{place} has no place in the flow yet"
        wrong += [
            f"{path.relative_to(root)} imports {name}"
            for name in imported(path) - {place}
            if name not in FLOW[: FLOW.index(place)]
        ]
    assert wrong == []


def test_the_package_and_contributing_draw_the_same_flow():
    stages = [name for name in FLOW if not name.startswith("_") and name != "errors"]
    told = [line.split()[0] for line in lipscale.__doc__.splitlines() if re.match(r"    \w+  ", line)]
    assert told == stages
    page = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text()
    drawn = page[page.index("settings -> data") : page.index("Imports point back")]
    assert [name.strip(" .\n") for name in drawn.split("->")] == stages


def test_the_house_stays_small():
    root = Path(lipscale.__file__).parent
    assert len(lipscale.__all__) <= 34
    for path in root.rglob("*.py"):
        text = path.read_text()
        assert len(text.splitlines()) <= 350, path
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef):
                assert node.end_lineno - node.lineno + 1 <= 60, f"{path}: {node.name}"
