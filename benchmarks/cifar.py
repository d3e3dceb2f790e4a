"""Accuracy and certified accuracy on the complete CIFAR-10 against CPU-seconds: one training a point, one thread.

python -m benchmarks.cifar results.jsonl --data-dir DIR --cpu 100 1000 --seeds 0 1 2     # makes what the file lacks
python -m benchmarks.cifar results.jsonl --cpu                                           # prints the table only
python -m benchmarks.cifar results.jsonl --cpu --figure curve.png                        # and draws it

CPU-seconds are of the process and of everything in it: reading, measuring the speed, training, feedback. What is not
counted is the evaluation on the test set. `--held-out` tests on 5,000 training images, to choose by.
"""

import argparse
import json
import statistics
import time
from dataclasses import replace
from pathlib import Path

import torch
from matplotlib.figure import Figure

from lipscale import _processes
from lipscale.data import prepare, read_dataset
from lipscale.errors import UserError
from lipscale.report.theme import colour, style
from lipscale.runs import Settings, evaluate
from lipscale.runs.assembly import assemble, at_epochs, at_width, resolve
from lipscale.settings import TrainingSettings
from lipscale.training import budget, fit

EPSILONS = (36 / 255, 0.25, 0.5)
BUDGETS = (10, 30, 100, 300, 1000, 3000, 7200)  # the figure's ticks
VARIANTS = {
    "xi = 0": {},
    "xi = 2": {"offset": 2.0},
    "xi = 2, not mirrored": {"offset": 2.0, "mirror": False},
    "xi = 0, not mirrored": {"mirror": False},
    "xi = 2, residual": {"offset": 2.0, "depth": 1},
    # the paper's network, as wide as a step of it is affordable here
    "ResNet-18, our layers": {"offset": 2.0, "model": "resnet18", "width": 16},
    "ResNet-18, orthogonium and torchlip": {
        **{"offset": 2.0, "model": "resnet18", "width": 16, "layers": "reference", "lipschitz": 6.0},
        **{"optimizer": "schedulefree", "precision": "float32", "batch_size": 128},
    },
}
# published: accuracy and certified accuracy at 36/255, in per cent; and where the name stands clear of the lines
YARDSTICKS = {
    "the paper, xi = 3, 15 h on a GPU": (76.9, 63.1, {"x": 0.01, "ha": "left", "va": "bottom"}),
    "the paper, xi = 0": (86.6, 34.5, {"x": 0.99, "ha": "right", "va": "top"}),
}


def one_run(variant, cpu, seed, data_dir, *, held_out, changes):
    """A training that ends with its CPU-seconds, and what it is worth."""
    start = time.process_time()
    settings = Settings.model_validate(
        {"data": "cifar10", "data_dir": data_dir, "seed": seed, "device": "cpu", **VARIANTS[variant], **changes}
    )
    dataset = read_dataset(settings)
    if held_out:
        order = torch.randperm(len(dataset.train), generator=torch.Generator().manual_seed(seed))
        dataset = replace(dataset, train=dataset.train.take(order[5000:]), test=dataset.train.take(order[:5000]))
    dataset, preprocessing = prepare(dataset)
    settings = resolve(settings.model_copy(update={"minutes": cpu / 60}), dataset, preprocessing)
    values = settings.model_dump(include=set(TrainingSettings.model_fields))

    def time_epoch(width):
        parts = assemble(at_width(settings, width or 64, preprocessing.input_shape), dataset, preprocessing)
        return budget.seconds_of(parts.net, parts.train, parts.calibration, values), 0.0  # the test is not counted

    _processes.clock = time.process_time  # a busy machine must not change what is measured
    left = cpu - (time.process_time() - start)
    width, epochs = budget.fit_to_time(left, time_epoch, width=settings.width)
    settings = at_epochs(settings, epochs, preprocessing.input_shape)
    parts = assemble(at_width(settings, width, preprocessing.input_shape), dataset, preprocessing)
    found = fit(parts.net, parts.train, parts.calibration, progress=False, **{**values, "epochs": epochs})
    taken = time.process_time() - start
    metrics = evaluate(found.net, dataset.test, epsilons=EPSILONS, calibration_size=found.calibration_size).metrics
    return {
        "variant": variant,
        "cpu": cpu,
        "seed": seed,
        "held_out": held_out,
        "changes": changes,
        "taken": taken,
        "width": width,
        "epochs": epochs,
        "L": found.lipschitz,
        "train_accuracy": found.history[-1].train_accuracy,
        "accuracy": metrics.accuracy,
        "ece": metrics.ece,
        "esce": metrics.esce,
        "temperature": metrics.temperature,
        "calibrated": metrics.calibrated,
        "calibration_error": metrics.calibration_error,
        "certified": list(metrics.certified_accuracy.values()),
    }


def plan_of(row):
    """What rows of one line share: the variant, further settings, and which images they are tested on."""
    changes = [f"{key} {value}" for key, value in row["changes"].items()]
    return ", ".join([row["variant"], *changes, *["held-out images"] * row["held_out"]])


def shown(values, scale=100):
    """The median of those that are known, in per cent."""
    known = [scale * value for value in values if value is not None]
    return f"{statistics.median(known):.1f}" if known else "–"


def table(rows):
    """Medians over the seeds, a line for each plan and budget."""
    print(
        "| variant | CPU-s asked | taken | width | epochs | accuracy | CRA 36/255 | 0.25 | 0.5 | ECE | calibrated | L |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|---|")
    for plan, cpu in dict.fromkeys((plan_of(row), row["cpu"]) for row in rows):
        of = [row for row in rows if (plan_of(row), row["cpu"]) == (plan, cpu)]
        middle = lambda key, of=of: statistics.median(row[key] for row in of)  # noqa: E731
        radii = " | ".join(shown(row["certified"][i] for row in of) for i in range(3))
        sure = f"{sum(row['calibrated'] is True for row in of)} of {len(of)}"
        print(
            f"| {plan} | {cpu:g} | {middle('taken'):.0f} | {middle('width'):g} | {middle('epochs'):g} "
            f"| {shown(row['accuracy'] for row in of)} | {radii} | {shown(row['ece'] for row in of)} | {sure} "
            f"| {shown((row['L'] for row in of), 1)} |"
        )


def draw(rows, path):
    """Two panels: accuracy and certified accuracy over CPU-seconds."""
    with style():
        figure = Figure(figsize=(9, 3.6), layout="constrained")
        for axes, title, value in zip(
            figure.subplots(1, 2),
            ("accuracy", "certified accuracy at 36/255"),
            (lambda row: row["accuracy"], lambda row: row["certified"][0]),
            strict=True,
        ):
            for i, plan in enumerate(dict.fromkeys(map(plan_of, rows))):
                points = [
                    (cpu, 100 * statistics.median(value(r) for r in rows if (plan_of(r), r["cpu"]) == (plan, cpu)))
                    for cpu in sorted({row["cpu"] for row in rows if plan_of(row) == plan})
                ]
                axes.plot(*zip(*points, strict=True), marker="o", color=colour(i), label=plan)
            for name, (*both, place) in YARDSTICKS.items():
                level = both[0 if title == "accuracy" else 1]
                axes.axhline(level, color="0.7", linewidth=0.8)
                axes.text(y=level, s=name, fontsize=8, transform=axes.get_yaxis_transform(), **place)
            least, most = min(row["cpu"] for row in rows), max(row["cpu"] for row in rows)
            budgets = [budget for budget in BUDGETS if least <= budget <= most]
            axes.set(xscale="log", xlabel="CPU-seconds of training, one thread", title=f"{title}, per cent")
            axes.set_xticks(budgets, [f"{budget:g}" for budget in budgets])
            axes.minorticks_off()
            axes.margins(y=0.15)  # room for the names of the yardsticks
        figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
        figure.savefig(path, dpi=120)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--cpu", type=float, nargs="*", default=[100.0])
    parser.add_argument("--variants", nargs="*", default=["xi = 0", "xi = 2"], choices=VARIANTS)
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="further settings")
    parser.add_argument("--held-out", action="store_true")
    parser.add_argument("--figure", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    changes = dict(item.split("=", 1) for item in arguments.set)
    rows = [json.loads(line) for line in arguments.results.open()] if arguments.results.exists() else []
    for cpu in arguments.cpu:
        for seed in arguments.seeds:
            for variant in arguments.variants:
                wanted = {"variant": variant, "cpu": cpu, "seed": seed, "held_out": arguments.held_out}
                if any(wanted.items() <= row.items() and row["changes"] == changes for row in rows):
                    continue
                try:
                    row = one_run(variant, cpu, seed, arguments.data_dir, held_out=arguments.held_out, changes=changes)
                except UserError as error:  # no whole epoch fits
                    print(f"{variant}, {cpu:g} CPU-seconds: {error}")
                    continue
                rows.append(row)
                with arguments.results.open("a") as file:
                    file.write(json.dumps(row) + "\n")
    table(rows)
    if arguments.figure:
        draw(rows, arguments.figure)


if __name__ == "__main__":
    main()
