"""Shared helpers: dense operators as oracles, and the console script."""

import importlib
import os
import subprocess
import sys
import types
from importlib.util import find_spec
from pathlib import Path

# small networks are fastest on one thread, and pytest-xdist runs one process a core; before torch is imported
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from browsing import browser  # noqa: F401 (a fixture)
from lipscale import data, estimate_means, models, register_rule, set_lipschitz
from lipscale.bounds.walk import RULES
from lipscale.layers import OrthoLinear
from lipscale.training import Training
from lipscale.training.batches import SampleBatches

# where real sets may lie: the system's folder, $LIPSCALE_DATA, and a folder beside the checkout
REAL_DATA = [Path("/usr/share/datasets"), Path(__file__).parents[2] / "shared" / "data"]

# what is about signals, forks and limits of POSIX
POSIX_ONLY = ("cli/test_processes.py", "cli/test_stop.py", "data/test_floods.py", "experiments/test_pool.py")
collect_ignore = [] if os.name == "posix" else [*POSIX_ONLY, "runs/test_durability.py"]


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def digits():
    """The embedded digits."""
    return data.load_dataset("digits")


@pytest.fixture(scope="session")
def digits_split(digits):
    """Of 400 of them, what to train on and what to calibrate on."""
    found = data.limit(digits, 400, seed=0)
    return data.split_calibration(found.train, 0.25, seed=0, classes=found.classes)


@pytest.fixture(scope="session")
def digits_net(digits) -> nn.Module:
    """An MLP with a short training: most digits right, few of them robust."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = models.mlp(10, (1, 8, 8), 64)
    set_lipschitz(net, 8.0)
    optimizer = torch.optim.Adam(net.parameters(), 5e-3)
    for _ in range(60):
        optimizer.zero_grad()
        F.cross_entropy(net(digits.train.inputs), digits.train.labels).backward()
        optimizer.step()
    return net.eval()


class Doubling(nn.Module):
    """A module for a rule that lies about it."""

    def forward(self, x):
        return 2 * x


@pytest.fixture
def lying_net():
    """A network on digits whose bound is a quarter of its constant."""
    register_rule(Doubling, lambda module, bound: 0.5)
    yield nn.Sequential(nn.Flatten(), Doubling(), OrthoLinear(64, 10)).eval()
    del RULES[Doubling]


def dense(operator, shape: tuple[int, ...]) -> Tensor:
    """The matrix of a linear (or affine) operator on inputs of this shape, one column a basis vector."""
    size = torch.Size(shape).numel()
    eye = torch.eye(size, dtype=torch.float64).reshape(size, *shape)
    zero = operator(torch.zeros(1, *shape, dtype=torch.float64))
    return (operator(eye) - zero).flatten(1).T


def exact_norm(module: nn.Module, shape: tuple[int, ...]) -> float:
    """The norm of a linear module on inputs of this shape, by a dense SVD."""
    return float(torch.linalg.matrix_norm(dense(module, shape).detach(), ord=2))


def ready(module: nn.Module) -> nn.Module:
    """The module in float64, in evaluation."""
    return module.double().eval()


def centred(net: nn.Module, *batches: Tensor) -> nn.Module:
    """The network in evaluation, its centering means set from these batches: a fresh one has none."""
    estimate_means(net.eval(), batches)
    return net


def training_of(net: nn.Module, train, calibration, settings, *, augmentation="none", **options) -> Training:
    """A training on samples in memory, as `lipscale.train` makes one."""

    def batches(samples):
        return None if samples is None else SampleBatches(samples, settings.batch_size or 128, augmentation, seed)

    seed = settings.seed
    return Training(net, batches(train), batches(calibration), settings, **options)


def jacobian_norms(net: nn.Module, inputs: Tensor) -> Tensor:
    """The exact largest singular value of the Jacobian at each input."""
    norms = []
    for x in inputs:
        jacobian = torch.autograd.functional.jacobian(lambda v: net(v.unsqueeze(0)).squeeze(0), x)
        norms.append(torch.linalg.matrix_norm(jacobian.flatten(1), ord=2))
    return torch.stack(norms)


def real_folder(name: str) -> Path:
    """The folder of a real data set, or skip."""
    for base in (*REAL_DATA, Path(os.environ.get("LIPSCALE_DATA", "/nonexistent"))):
        folder = data.find_folder(name, base)
        if folder is not None:
            return folder
    pytest.skip(f"{name} is not on this machine: {data.READERS[name].get}")


def lipscale(*arguments, cwd=None, check=True, env=None) -> subprocess.CompletedProcess:
    """Run the console script as a user would."""
    script = Path(sys.executable).with_name("lipscale")
    done = subprocess.run(
        [script, *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, **(env or {})},
    )
    if check:
        assert done.returncode == 0, done.stderr
    return done


def part_of(package, *inner):
    """A module of a library whose packages import far more than is installed here."""
    found = find_spec(package)
    if found is None:
        pytest.skip(f"{package} is not installed: pip install --no-deps {package}")
    base = Path(found.submodule_search_locations[0])
    before = {name: module for name, module in sys.modules.items() if name.split(".")[0] == package}
    for name in before:
        del sys.modules[name]
    try:
        for k in range(len(inner)):
            name = ".".join((package, *inner[:k]))
            sys.modules[name] = types.ModuleType(name)
            sys.modules[name].__path__ = [str(base.joinpath(*inner[:k]))]
        return importlib.import_module(".".join((package, *inner)))
    finally:
        for name in [name for name in sys.modules if name.split(".")[0] == package]:
            del sys.modules[name]
        sys.modules.update(before)
