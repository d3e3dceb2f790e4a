"""Which family of Lipschitz layers pays, and which objective? Each under LiST at an equal CPU budget, one thread.

python -m benchmarks.families results.jsonl --data-dir DIR --cpu 300 --seeds 0 1 2     # makes what the file lacks
python -m benchmarks.families results.jsonl --cpu --page docs/FAMILIES.md              # writes the table there only
python -m benchmarks.families results.jsonl --families aol cayley --set model=convnet width=16 offset=2
python -m benchmarks.families results.jsonl --objectives --families                    # the objectives, by our layers

The budget holds reading, measuring the speed, training and feedback; the evaluation is not counted. Where the width is
left open it follows from the budget: the widest network that sees the data often enough, so that a family whose steps
cost more has a narrower one.
"""

import argparse
import copy
import itertools
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch

from benchmarks.measure import peak_rss
from lipscale import _processes, models
from lipscale.certificates import prove
from lipscale.certificates.slopes import slopes
from lipscale.data import as_input, prepare, read_dataset
from lipscale.data import limit as limited
from lipscale.errors import UserError
from lipscale.layers.families import FAMILIES
from lipscale.runs import Settings, evaluate
from lipscale.runs.assembly import assemble, at_epochs, resolve
from lipscale.settings import ModelSettings, TrainingSettings, replace
from lipscale.training import budget, fit
from lipscale.training.fitting import new_training

EPSILONS = (36 / 255, 0.5)
SLOPES_AT, PAIRS = 32, 500  # test samples around which steep slopes are searched for, and how many
STEPS = 7  # training steps that are timed
OBJECTIVES = {
    "offset (xi = 0)": {},
    "offset, xi = 2": {"offset": 2.0},
    "offset, margin 0.25": {"margin": 0.25},
    **{name: {"objective": name} for name in ("tau", "hkr", "annealing", "emma", "cll", "certificate")},
}
PLAIN = next(iter(OBJECTIVES))
COLUMNS = {
    "accuracy": lambda of: _share(of, "accuracy"),
    "ECE (limit)": lambda of: f"{_share(of, 'ece')} ({_share(of, 'ece_limit')})",
    "calibrated": lambda of: f"{sum(row['calibrated'] is True for row in of)} of {len(of)}",
    "CRA 36/255": lambda of: _share(of, "certified"),
    "CRA 0.5": lambda of: _share(of, "certified_at_half"),
    "L\\*": lambda of: f"{_middle(of, 'L'):.1f}",
    "step / twin": lambda of: f"{_middle(of, 'step_ratio'):.2f}",
    "memory, MB": lambda of: f"{_middle(of, 'memory'):.0f}",
    "tightness": lambda of: f"{_middle(of, 'tightness'):.2f}",
    "width": lambda of: f"{_middle(of, 'width'):g}",
    "epochs": lambda of: f"{_middle(of, 'epochs'):g}",
}


def one_run(family, objective, data, cpu, seed, data_dir, changes):
    """A training that ends with its CPU-seconds, and what it is worth."""
    start = time.process_time()
    _processes.clock = time.process_time  # a busy machine must not change what is measured
    asked = {"data": data, "data_dir": data_dir, "seed": seed, "layers": family, "device": "cpu"}
    asked["mirror"] = False  # the default of our own layers alone
    asked |= {**OBJECTIVES[objective], **changes}
    settings = Settings.checked({**asked, "minutes": cpu / 60})
    dataset = read_dataset(settings)
    dataset = dataset if settings.limit is None else limited(dataset, settings.limit, seed=seed)
    dataset, preprocessing = prepare(dataset)
    settings = resolve(settings, dataset, preprocessing)
    values = settings.model_dump(include=set(TrainingSettings.model_fields))
    default = models.DEFAULT_WIDTH[settings.model]

    def time_epoch(width):
        parts = assemble(replace(settings, width=width or default), dataset, preprocessing)
        return budget.seconds_of(parts.net, parts.train, parts.calibration, values), 0.0  # the test is not counted

    left, scalable = cpu - (time.process_time() - start), settings.model == "patchnet"
    width, epochs = budget.fit_to_time(left, time_epoch, width=settings.width, is_scalable=scalable)
    settings = at_epochs(replace(settings, width=width or default), epochs, preprocessing.input_shape)
    parts = assemble(settings, dataset, preprocessing)
    found = fit(parts.net, parts.train, parts.calibration, progress=False, **{**values, "epochs": epochs})
    taken = time.process_time() - start
    metrics = evaluate(found.net, dataset.test, epsilons=EPSILONS, calibration_size=found.calibration_size).metrics
    certified, at_half = metrics.certified_accuracy.values()
    network = settings.model_dump(include=set(ModelSettings.model_fields))
    return {
        **{"family": family, "objective": objective, "data": data, "cpu": cpu, "seed": seed},
        **{"changes": changes, "taken": taken},
        **{"width": settings.width, "epochs": epochs, "L": found.lipschitz, "accuracy": metrics.accuracy},
        **{"ece": metrics.ece, "ece_limit": metrics.ece_limit, "calibrated": metrics.calibrated},
        **{"certified": certified, "certified_at_half": at_half},
        "memory": measured(
            "--memory", {"shape": dataset.test.inputs.shape[1:], "batch": settings.batch_size, **network}
        ),
        "bound_over_L": metrics.lipschitz_bound / found.lipschitz,
        "tightness": tightness(found.net, as_input(dataset.test.inputs[:SLOPES_AT])),
        "step_ratio": step_ratio(settings, dataset, preprocessing),
    }


def memory_of(shape, batch, **chosen):
    """The megabytes that a network and two of its training steps add to a fresh process at their peak."""
    settings = Settings.checked(chosen)
    inputs, labels = torch.rand(2 * batch, *shape), torch.arange(2 * batch) % 10
    before = peak_rss()
    net = models.build(settings, 10, tuple(shape))
    training = new_training(net, (inputs, labels), (inputs[:20], labels[:20]), {"batch_size": batch})
    net.train()
    for some, their in training.train.epoch("memory", 1):
        budget.train_step(training, some, their, budget.random_stream(0, "memory"))
    return peak_rss() - before


def tightness(net, inputs):
    """The steepest slope found over the proven bound."""
    proof = prove(net, inputs.shape[1:])
    found = slopes(copy.deepcopy(proof.net).double(), inputs.double(), PAIRS, seed=0)
    return max(float(some.max()) for some in found) / proof.bound


def step_ratio(settings, dataset, preprocessing):
    """CPU-seconds of a training step over those of the unconstrained twin's, in turns."""
    trainings = {}
    for method in ("list", "standard"):
        open_again = {"objective": "offset", "offset": 0.0, "margin": 0.0, "lipschitz": None, "learning_rate": None}
        layers = settings.layers if method == "list" else "fast"
        made = replace(settings, method=method, layers=layers, optimizer="auto", **open_again)
        parts = assemble(made, dataset, preprocessing)
        values = made.model_dump(include=set(TrainingSettings.model_fields))
        training = new_training(parts.net, parts.train, parts.calibration, values)
        training.net.train()
        trainings[method] = training, next(iter(training.train.epoch("speed", 1)))
    seconds = {method: [] for method in trainings}
    for _ in range(STEPS):
        for method, (training, (inputs, labels)) in trainings.items():
            start = time.process_time()
            budget.train_step(training, inputs, labels, budget.random_stream(0, "speed"))[1].item()
            seconds[method].append(time.process_time() - start)
    return statistics.median(seconds["list"]) / statistics.median(seconds["standard"])


def _middle(of, key):
    return statistics.median(row[key] for row in of)


def _share(of, key):
    values = [100 * row[key] for row in of]
    spread = f" ± {(max(values) - min(values)) / 2:.1f}" if len(values) > 1 else ""
    return f"{statistics.median(values):.1f}{spread}"


def table(rows):
    """Medians over the seeds and half their range; the most accurate first."""
    lines = []
    by_family = [row for row in rows if row["objective"] == PLAIN]
    by_objective = [row for row in rows if row["family"] == "fast"]
    for what, of in (("family", by_family), ("objective", by_objective)):
        for title in dict.fromkeys(map(_title, of)):
            lines += _one_table(what, title, [row for row in of if _title(row) == title])
    return "\n".join(lines)


def _title(row):
    extra = "".join(f", {key} {value}" for key, value in row["changes"].items())
    return f"**{row['data']}**, {row['cpu']:g} CPU-seconds{extra}"


def _one_table(what, title, rows):
    seeds = len({row["seed"] for row in rows})
    lines = [f"{title}, {seeds} seed{'s' if seeds > 1 else ''}; shares in per cent.", ""]
    lines += [f"| {what} | " + " | ".join(COLUMNS) + " |", "|---" * (1 + len(COLUMNS)) + "|"]
    named = {name: [row for row in rows if row[what] == name] for name in {row[what] for row in rows}}
    for name, of in sorted(named.items(), key=lambda item: -_middle(item[1], "accuracy")):
        lines.append(f"| {name} | " + " | ".join(column(of) for column in COLUMNS.values()) + " |")
    return [*lines, ""]


def write_page(path, text, mark):
    """Put the tables between their marks."""
    page, begin, end = path.read_text(), f"<!-- {mark}:begin -->", f"<!-- {mark}:end -->"
    head, tail = page[: page.index(begin) + len(begin)], page[page.index(end) :]
    path.write_text(f"{head}\n{text.rstrip()}\n{tail}")


def measured(what, arguments):
    """What a process of its own finds, so that its time and memory are its own; nothing where it cannot be made."""
    command = [sys.executable, "-m", "benchmarks.families", what, json.dumps(arguments)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("--data", nargs="*", default=["fashion-mnist", "cifar10"])
    parser.add_argument("--data-dir")
    parser.add_argument("--cpu", type=float, nargs="*", default=[300.0])
    parser.add_argument("--families", nargs="*", default=list(FAMILIES), choices=FAMILIES)
    parser.add_argument("--objectives", action="store_true", help="also the objectives, by our own layers")
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="further settings")
    parser.add_argument("--page", type=Path, help="write the table into this page")
    arguments = parser.parse_args()
    changes = dict(item.split("=", 1) for item in arguments.set)
    rows = [json.loads(line) for line in arguments.results.open()] if arguments.results.exists() else []
    contestants = [(family, PLAIN) for family in arguments.families]
    contestants += [("fast", objective) for objective in OBJECTIVES] if arguments.objectives else []
    runs = itertools.product(arguments.cpu, arguments.seeds, arguments.data, contestants)
    for cpu, seed, data, (family, objective) in runs:
        wanted = {"family": family, "objective": objective, "data": data, "cpu": cpu, "seed": seed, "changes": changes}
        if any(wanted.items() <= row.items() for row in rows):
            continue
        row = measured("--run", {**wanted, "data_dir": arguments.data_dir})
        if row is None:
            continue
        rows.append(row)
        with arguments.results.open("a") as file:
            file.write(json.dumps(row) + "\n")
    print(table(rows))
    if arguments.page:
        write_page(arguments.page, table(rows), "families")


if __name__ == "__main__":
    inside = {"--run": one_run, "--memory": memory_of}
    if sys.argv[1:2] and sys.argv[1] in inside:
        torch.set_num_threads(1)
        try:
            print(json.dumps(inside[sys.argv[1]](**json.loads(sys.argv[2]))))
        except UserError as error:
            sys.exit(f"{sys.argv[2]}: {error}")
    else:
        main()
