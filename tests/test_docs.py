"""The documentation is true: what it names exists, what it shows runs."""

import ast
import doctest
import importlib
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import lipscale
from lipscale.settings import Settings

ROOT = Path(__file__).parents[1]
TESTS = ROOT / "tests"
STAGES = [path.stem for path in (ROOT / "src" / "lipscale").iterdir() if not path.name.startswith("_")]
PUBLIC = [name for name in lipscale.__all__ if not inspect.ismodule(getattr(lipscale, name))]
ERRORS = ("UserError", "DivergedError", "UnsoundError")


# --- docs/PAPER.md ---


def quoted(text: str) -> list[str]:
    """What stands in backticks in the tables."""
    return [token for line in text.splitlines() if line.startswith("|") for token in re.findall(r"`([^`]+)`", line)]


def defined_tests() -> dict[str, set[str]]:
    """The tests, and the classes of tests, in each file: Class, name and Class::name."""
    found: dict[str, set[str]] = {}
    for path in TESTS.rglob("test_*.py"):
        names = found.setdefault(path.name, set())
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                inner = {f.name for f in node.body if isinstance(f, ast.FunctionDef)}
                names |= {node.name} | {f"{node.name}::{name}" for name in inner}
            elif isinstance(node, ast.FunctionDef):
                names.add(node.name)
    return found


def resolves(dotted: str) -> bool:
    """Whether lipscale.DOTTED exists: modules first, then attributes."""
    parts = dotted.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(["lipscale", *parts[:cut]]))
        except ImportError:
            continue
        for name in parts[cut:]:
            if not hasattr(found, name):
                fields = getattr(found, "__dataclass_fields__", {}) | getattr(found, "model_fields", {})
                return name in fields and name == parts[-1]
            found = getattr(found, name)
        return True
    return False


def test_every_symbol_and_test_that_the_map_of_the_paper_names_exists():
    tests, wrong, file = defined_tests(), [], ""
    for token in quoted((ROOT / "docs" / "PAPER.md").read_text()):
        if match := re.match(r"(test_\w+\.py)(?:::(.+))?$", token):
            file = match[1]
            if file not in tests or (match[2] and match[2] not in tests[file]):
                wrong.append(token)
        elif token.startswith("::"):
            if not any(f"::{name}".endswith(token) for name in tests.get(file, ())):  # of a class that was named
                wrong.append(f"{file}{token}")
        elif re.match(r"[a-z_]+(\.\w+)+$", token) and token.split(".")[0] in STAGES:
            if not resolves(token):
                wrong.append(token)
        elif (match := re.match(r"(\w+): \w+", token)) and match[1] not in Settings.model_fields:
            wrong.append(token)
    assert wrong == []


def test_a_wrong_row_would_be_noticed():
    assert resolves("bounds.lipschitz_bound")
    assert resolves("certificates.Certificate.radius")
    assert not resolves("bounds.lipschitz_bond")
    assert not resolves("nowhere.at_all")
    assert "test_a_wrong_row_would_be_noticed" in defined_tests()["test_docs.py"]


# --- docstrings ---


@pytest.mark.parametrize("name", PUBLIC)
def test_the_examples_of_public_names_run(name):
    found = getattr(lipscale, name)
    module = sys.modules[found.__module__]
    tests = doctest.DocTestFinder(recurse=True).find(found, name, module=module, globs={})
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    for test in tests:
        runner.run(test)
    assert runner.summarize(verbose=False).failed == 0


@pytest.mark.parametrize("name", [name for name in PUBLIC if name not in ERRORS])
def test_public_names_say_what_they_take_and_give_and_show_it(name):
    found = getattr(lipscale, name)
    text = inspect.getdoc(found) or ""
    if inspect.isfunction(found):
        needed = ["Args:", "Example:"] + (
            ["Returns:"] if inspect.signature(found).return_annotation is not None else []
        )
        assert [part for part in needed if part not in text] == []
    else:
        assert len(text.splitlines()) >= 1


# --- code blocks ---


def blocks(path: str, language: str) -> list[str]:
    """The fenced code blocks of a page."""
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / path).read_text(), re.DOTALL)


@pytest.mark.parametrize("page", ["README.md", "docs/TUTORIAL.md"])
def test_the_python_of_the_pages_runs(page, tmp_path):
    code = "\n".join(blocks(page, "python"))
    if not code:
        pytest.skip("no Python on this page")
    code = code.replace('Settings(data="digits"', 'Settings(data="digits", epochs=2')  # what it shows, in less time
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.long
def test_the_commands_of_the_tutorial_run(tmp_path):
    """Those on the embedded digits, in a shortened run; pictures and tables of one's own are made up."""
    (tmp_path / "first.yaml").write_text("epochs: 10\nwidth: 32\n")
    script = "\n".join(blocks("docs/TUTORIAL.md", "sh"))
    lines = [line.split("   #")[0].strip() for line in script.splitlines() if "runs/first" in line]
    for line in lines:
        line = line.replace("lipscale train", "lipscale train first.yaml")
        if "digit.png" in line:
            from PIL import Image

            Image.new("L", (20, 30)).save(tmp_path / "digit.png")
        if "runs/second" in line:
            run("lipscale train first.yaml --seed 1 --out runs/second", tmp_path)
        run(line, tmp_path)
    assert len(lines) >= 5


def run(line: str, cwd: Path) -> None:
    """One command of a page, by the console script of this environment."""
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(line, shell=True, cwd=cwd, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, f"{line}\n{done.stderr}"
