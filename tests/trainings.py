"""Small trainings in float64, for one process or, under torchrun, for several: `python trainings.py FOLDER ORDER`."""

import json
import os
import subprocess
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lipscale import fit, models
from lipscale._files import save_tensors
from lipscale._processes import count, is_first, number
from lipscale.data import Samples
from lipscale.errors import StoppedError, UserError
from lipscale.training.batches import SampleBatches
from lipscale.training.distributed import together


def images(n, *, size=8, seed=0):
    """Of three classes that can be told apart, and not by everybody."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(3, (n,), generator=generator)
    centres = torch.randn(3, 2, size, size, generator=torch.Generator().manual_seed(1))
    return 0.4 * centres[labels] + torch.randn(n, 2, size, size, generator=generator), labels


def dataset(n, *, seed=0):
    inputs, labels = images(n, seed=seed)
    return TensorDataset(inputs.double(), labels)


def samples(n, *, seed=0):
    return SampleBatches(Samples(*images(n, seed=seed)), 16, "crop+flip", 0)


def mlp():
    return models.mlp(3, (2, 8, 8), 16)


def convnet():
    return models.convnet(num_classes=3, in_channels=2, width=4)


def resnet18():
    return models.resnet18(num_classes=3, in_channels=2, width=8)


def patchnet():
    return models.patchnet(num_classes=3, in_channels=2, width=8, image_size=8, depth=1)


# 53 samples in batches of 16 divide neither into batches nor into halves; nor do 80, with the calibration set
TRAININGS = {
    "mlp": (mlp, dataset, {"class_weights": (1.0, 2.0, 5.0), "margin": 0.05}),
    "convnet": (convnet, dataset, {}),
    "averaged": (convnet, dataset, {"optimizer": "schedulefree"}),
    "resnet18": (resnet18, dataset, {}),
    "patchnet": (patchnet, samples, {}),
    "in turns": (mlp, dataset, {"cross_fit": True, "calibration_fraction": 0.5, "objective": "ar-adals"}),
    "mmce": (mlp, dataset, {"class_weights": (1.0, 2.0, 5.0), "objective": "mmce"}),
    "avuc": (mlp, dataset, {"objective": "avuc"}),
}


def train(name, folder, *, stop_after=None, **changes):
    """Three epochs, one of them of Phase II; what came out is written down. The last process stops after a batch."""
    build, data, settings = TRAININGS[name]
    torch.manual_seed(number())  # what the first one has is what counts
    net = build().double()
    net.register_forward_pre_hook(lambda _, inputs: (inputs[0].double(),))  # samples in memory come in float32
    asked = iter(range(1, 10**6))
    known = {"epochs": 2, "phase2_epochs": 1, "batch_size": 16, "learning_rate": 0.02, "precision": "float32"}
    options = {"progress": False, "checkpoint": folder / f"{name}.checkpoint", **known, **settings, **changes}
    held_out = None if options.get("cross_fit") else data(27, seed=7)
    stop = lambda: number() + 1 == count() and next(asked) == stop_after  # noqa: E731
    result = fit(net, data(53), held_out, **options, should_stop=stop)
    if is_first():
        history = [{**asdict(epoch), "seconds": 0.0, "cpu_seconds": 0.0} for epoch in result.history]
        save_tensors(folder / f"{name}.trained", net.state_dict(), {"history": history})


def different_data(folder):
    TRAININGS["other data"] = (mlp, lambda n, seed=0: dataset(n, seed=seed + number()), {})
    train("other data", folder)


WRONG = {
    "small batches": lambda folder: train("mlp", folder, batch_size=1),
    "settings": lambda folder: train("mlp", folder, offset=float(number())),
    "data": different_data,
    "one fails": lambda folder: train("mlp", folder, smoothing=2.0 if number() else 0.1),
    "folder": lambda folder: train("convnet", folder / str(number())),
    "loader": lambda folder: fit(mlp(), DataLoader(dataset(20)), DataLoader(dataset(20)), progress=False),
    "normalisation": lambda folder: fit(
        nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 2)), dataset(9), method="standard"
    ),
}


def torchrun(script, *arguments, processes=2):
    """Let so many processes carry out a script."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*command, script, *arguments], capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr


def end_at_once():
    """End well without the interpreter's own end: gloo's threads may still be at work, and abort it."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    with together():
        for each in json.loads(sys.argv[2]):
            try:
                work = WRONG[each["wrong"]] if "wrong" in each else partial(train, each["name"])
                work(Path(sys.argv[1]) / each["folder"], **each.get("options", {}))
            except (UserError, StoppedError) as error:
                (Path(sys.argv[1]) / f"{each['folder']}-{number()}.txt").write_text(f"{type(error).__name__}: {error}")
    end_at_once()
