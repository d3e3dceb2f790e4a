"""What a stranger installs: typed for mypy, importable where POSIX is not, and with links that lead somewhere."""

import ast
import importlib
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import pytest

import lipscale

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

# Windows has none of these; the standard library and our dependencies know that, and are left alone
WITHOUT_POSIX = """
import builtins, importlib, os, pkgutil, signal, sys, warnings

import matplotlib, pyarrow, scipy, sklearn.ensemble, torch.distributed, torch.utils.data  # before anything is gone

POSIX = {"fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "syslog", "posix", "readline"}
find = builtins.__import__

def without(name, globals=None, *rest, **named):
    if name.partition(".")[0] in POSIX and ((globals or {}).get("__name__") or "").startswith("lipscale"):
        raise ImportError(f"{globals['__name__']} imports {name}")
    return find(name, globals, *rest, **named)

builtins.__import__ = without
for name in ("posix_fallocate", "posix_fadvise", "sched_getaffinity", "statvfs", "getloadavg", "nice"):
    delattr(os, name)
for name in ("pthread_sigmask", "SIGKILL", "SIGHUP", "SIGUSR1", "SIGALRM", "alarm"):
    delattr(signal, name)

import lipscale

warnings.filterwarnings("error", category=EncodingWarning, module="lipscale")  # text that is no UTF-8 elsewhere
names = [module.name for module in pkgutil.walk_packages(lipscale.__path__, "lipscale.")]
for name in names:
    if name != "lipscale.__main__":
        importlib.import_module(name)
print(len(names), "modules")
"""
TRAINS = """
from lipscale.report import write_report
settings = lipscale.Settings(data=sys.argv[1], limit=100, epochs=2, width=8, out="run")
run = lipscale.train(settings, progress=False)
print(write_report([run.folder]))
"""


def python(*arguments, cwd):
    done = subprocess.run([sys.executable, *map(str, arguments)], cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_every_module_is_imported_and_a_run_is_made_without_posix(tmp_path):
    code = textwrap.dedent(WITHOUT_POSIX) + TRAINS
    said = python("-X", "warn_default_encoding", "-c", code, ROOT / "examples" / "shards", cwd=tmp_path)
    assert int(said.split()[0]) > 200
    assert (tmp_path / "run" / "report.html").exists()


@pytest.mark.long  # mypy reads all of torch; scripts/check-wheel does so against the wheel
def test_a_users_mypy_accepts_the_package(tmp_path):
    """Errors within the package are silent, as they are where it is installed; our own mypy finds those."""
    here = Path(lipscale.__file__).parents[1]
    (tmp_path / "mypy.ini").write_text(f"[mypy]\nstrict = true\nfollow_imports = silent\nmypy_path = {here}\n")
    assert "Success" in python("-m", "mypy", ROOT / "tests" / "typed_user.py", cwd=tmp_path)
    wrong = tmp_path / "wrong.py"
    wrong.write_text("import lipscale\nlipscale.nonsense\nlipscale.fit(1, 2)\nlipscale.__version__ + 1\n")
    done = subprocess.run([sys.executable, "-m", "mypy", wrong], cwd=tmp_path, capture_output=True, text=True)
    assert 'has no attribute "nonsense"' in done.stdout
    assert done.stdout.count("error:") == 3  # the names are typed, and not Any


def test_the_release_says_one_version_everywhere_and_has_an_address():
    cited = (ROOT / "CITATION.cff").read_text()
    assert f"version: {PROJECT['version']}\n" in cited
    assert f'repository-code: "{PROJECT["urls"]["Homepage"]}"' in cited
    assert f"\n## {PROJECT['version']}" in (log := (ROOT / "CHANGELOG.md").read_text()) or "\n## Unreleased" in log


def test_every_link_of_the_readme_leads_to_a_file_of_this_release(tmp_path):
    """setup.py makes them absolute for PyPI; `setup.py --long-description` is what it shows."""
    shown = python("setup.py", "--quiet", "--long-description", cwd=ROOT)
    base = f"{PROJECT['urls']['Homepage']}/blob/v{PROJECT['version']}/"
    links = [part.partition(")")[0] for part in shown.split("](")[1:]]
    assert len(links) > 15
    for link in links:
        assert link.startswith(("https://", "#")), link
        assert not link.startswith(base) or (ROOT / link.removeprefix(base).partition("#")[0]).exists(), link


def scripts():
    """The Python beside the package, which nothing imports."""
    beside = [*(ROOT / "benchmarks").glob("*.py"), *(ROOT / "examples").glob("*.py"), *(ROOT / "scripts").iterdir()]
    return [path for path in beside if path.suffix == ".py" or "python" in path.read_text().partition("\n")[0]]


@pytest.mark.parametrize("path", scripts(), ids=lambda path: path.name)
def test_what_scripts_import_of_the_package_exists(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "lipscale":
            home = importlib.import_module(node.module)
            for alias in node.names:
                if not hasattr(home, alias.name):
                    importlib.import_module(f"{node.module}.{alias.name}")
