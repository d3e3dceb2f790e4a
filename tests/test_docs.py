"""The documentation is true: what it names exists, what it shows runs."""

import ast
import doctest
import importlib
import inspect
import itertools
import os
import re
import shlex
import shutil
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


# --- commands ---

PAGES = ["README.md", *(str(path.relative_to(ROOT)) for path in sorted((ROOT / "docs").glob("*.md")))]
# what takes hours, the network or a public set, or ends with Ctrl-C
ELSEWHERE = re.compile(r"lipscale serve|cifar10|mnist|reproduce (?!all --dry-run)|reproduce .*--profile")


def commands(page: str) -> list[str]:
    """The commands of lipscale on a page, without their comments."""
    lines = "".join(blocks(page, "sh")).splitlines()
    return [" ".join(part.split()) for line in lines for part in line.split(" #")[0].split("&&") if part.strip()]


@pytest.mark.parametrize("page", PAGES)
def test_every_command_has_flags_that_exist_and_files_that_are_here(page):
    import typer

    from lipscale.cli.commands import app

    group = typer.main.get_command(app)
    written = set()
    for line in commands(page):
        name, *words = line.split()
        if Path(name).name != "lipscale":
            continue
        given = [word for before, word in itertools.pairwise(["", *words]) if before != "--out" and is_path(word)]
        absent = {word for word in given if not (ROOT / word).exists() and not word.startswith("https:")}
        assert absent <= {*written, "runs/digits-mlp-list-1"}, line
        written |= {word for before, word in itertools.pairwise(words) if before == "--out"}
        command = group
        while hasattr(command, "commands"):
            command, words = command.commands[words[0]], words[1:]
        command.make_context(command.name, list(words))  # parses, and runs nothing


def is_path(word: str) -> bool:
    return "/" in word or Path(word).suffix in (".csv", ".parquet", ".npz", ".npy", ".png", ".yaml", ".json", ".html")


@pytest.mark.long
@pytest.mark.parametrize("page", ["README.md", "docs/DATA.md", "docs/METRICS.md", "docs/TUTORIAL.md"])
def test_the_commands_of_a_page_run_as_written(page, tmp_path):
    """All but those that need hours, the network or a public set; in a folder with the examples and nothing else."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    lines = [line for line in commands(page) if line.startswith("lipscale") and not ELSEWHERE.search(line)]
    if page == "README.md":
        run("lipscale train", tmp_path)  # the first command there, which installs, too
    for line in lines:
        run(line, tmp_path)
    for code in blocks(page, "py"):
        pytest.importorskip("pandas")
        run(shlex.join([sys.executable, "-c", code]), tmp_path)
    assert len(lines) >= 3


def run(line: str, cwd: Path) -> None:
    """One command of a page, by the console script of this environment."""
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(line, shell=True, cwd=cwd, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, f"{line}\n{done.stderr}"
