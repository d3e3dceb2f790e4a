"""How far can a prediction be trusted? Every method of the paper's related work beside LiST, at an equal CPU budget.

python -m benchmarks.uncertainty results.jsonl --data-dir DIR --cpu 15 --seeds 0 1 2     # makes what the file lacks
python -m benchmarks.uncertainty results.jsonl --cpu --page docs/UNCERTAINTY.md          # writes the tables there only

One network (patchnet; its unconstrained twin for the baselines), one thread, complete sets. The budget holds reading,
measuring the speed, training and feedback, in CPU-seconds of the process; attacks and the evaluation come after it.
"""

import argparse
import itertools
import json
import math
import tempfile
import time
from pathlib import Path
from typing import get_args

import torch

import lipscale
from benchmarks.families import _middle, _share, write_page
from lipscale import _processes
from lipscale._objectives import CalibratingName
from lipscale.data import prepare, read_dataset
from lipscale.runs import attack_run_uncertainty, conformal_run, outliers_run
from lipscale.runs.assembly import assemble, resolve
from lipscale.settings import TrainingSettings
from lipscale.training import budget

EPSILON = 36 / 255
ALPHA = 0.1
ATTACKED = 200  # test images, under each attack
WIDTH = 16
OUTLIERS = {"fashion-mnist": "cifar10", "cifar10": "cifar100"}
# the baselines' own, chosen on held-out training images for the profile mini
BASELINE = {"batch_size": 256, "learning_rate": 0.004}
CALIBRATING = [name for name in get_args(CalibratingName) if name != "mmce-weighted"]
METHODS = {
    "LiST": {},
    "LiST, xi = 2": {"offset": 2.0},
    **{f"LiST, {name}": {"objective": name} for name in ("mmce", "avuc", "dual-focal", "mbls", "ar-adals")},
    **{name: {"method": name, **BASELINE} for name in ("standard", *CALIBRATING, "pgd-at", "caat", "caat-authors")},
}


def one_run(method, data, cpu, seed, data_dir):
    """A training of so many CPU-seconds, and how far its answers can be trusted: as they are, attacked, at worst."""
    _processes.clock = time.process_time  # a busy machine must not change what is measured
    torch.set_num_threads(1)
    asked = {"data": data, "data_dir": data_dir, "seed": seed, "device": "cpu", "model": "patchnet", "width": WIDTH}
    with tempfile.TemporaryDirectory() as folder:
        settings = {**asked, **METHODS[method], "epsilons": (EPSILON,), "out": Path(folder) / "run"}
        epochs = epochs_within(cpu, lipscale.Settings(**settings))
        run = lipscale.train(lipscale.Settings(**settings, epochs=epochs), progress=False)
        epsilons = (EPSILON,) if run.settings.is_constrained else ()
        sets = conformal_run(run, alpha=ALPHA, epsilons=epsilons, splits=5, attack_samples=ATTACKED)
        outliers = outliers_run(run, OUTLIERS[data], epsilons=epsilons, attack_count=ATTACKED)
        attacked = attack_run_uncertainty(run, samples=ATTACKED, epsilons=(EPSILON,))
    metrics, energy = run.metrics, outliers.scores["energy"]
    (at,) = attacked.at.values()
    worst = {key: max(getattr(found, key) for found in at.attacked.values()) for key in ("ece", "nll", "aurc")}
    robust = next(iter(sets.at.values()), None)
    detected = next(iter(energy.certified.values()), None)
    return {
        **{"method": method, "data": data, "cpu": cpu, "seed": seed, "taken": metrics.cpu_seconds},
        **{"epochs": epochs, "accuracy": metrics.accuracy, "nll": metrics.nll, "ece": metrics.ece},
        **{"ece_limit": metrics.ece_limit, "calibrated": metrics.calibrated, "aurc": metrics.aurc},
        "cra": next(iter(metrics.certified_accuracy.values())) if epsilons else None,
        "clean": vars(attacked.clean),
        "attacked_accuracy": min(found.accuracy for found in at.attacked.values()),
        **{f"attacked_{key}": value for key, value in worst.items()},
        **{f"certified_{key}": getattr(at.certified, key) if at.certified else None for key in worst},
        **{"coverage": sets.plain.coverage, "size": sets.plain.size},
        **{"robust_coverage": robust and robust.robust_under_attack.coverage},
        "robust_size": robust and robust.robust.size,
        **{"auroc": energy.clean.auroc, "certified_auroc": detected and detected.both.auroc},
    }


def epochs_within(cpu, settings):
    """How many epochs the budget holds; one at the least, as attacked batches cost a dozen others."""
    start = time.process_time()
    dataset, preprocessing = prepare(read_dataset(settings))
    settings = resolve(settings, dataset, preprocessing)
    parts, values = (
        assemble(settings, dataset, preprocessing),
        settings.model_dump(include={*TrainingSettings.model_fields}),
    )
    epoch = budget.seconds_of(parts.net, parts.train, parts.calibration, values)
    return max(1, int((cpu - (time.process_time() - start)) / epoch))


def number(of, key, digits=2):
    """The median; nothing where a method has no such value."""
    return "–" if any(row[key] is None for row in of) else f"{_middle(of, key):.{digits}f}"


def percent(of, key):
    """The median and half the range, in per cent; nothing where a method has no such value."""
    return "–" if any(row[key] is None for row in of) else _share(of, key)


def three(of, key, show):
    """Clean on the attacked images, the worst of all attacks, the certified worst case."""
    clean = [{"clean": row["clean"][key]} for row in of]
    return f"{show(clean, 'clean')} / {show(of, f'attacked_{key}')} / {show(of, f'certified_{key}')}"


AS_THEY_ARE = {
    "accuracy": lambda of: percent(of, "accuracy"),
    "NLL": lambda of: number(of, "nll", 3),
    "ECE (limit)": lambda of: f"{percent(of, 'ece')} ({percent(of, 'ece_limit')})",
    "calibrated": lambda of: f"{sum(row['calibrated'] is True for row in of)} of {len(of)}",
    "AURC": lambda of: percent(of, "aurc"),
    "coverage": lambda of: percent(of, "coverage"),
    "size": lambda of: number(of, "size"),
    "AUROC": lambda of: number(of, "auroc", 3),
    "epochs": lambda of: number(of, "epochs", 0),
}
UNDER_ATTACK = {
    "accuracy: attacked (those 200) / certified (all test images)": lambda of: (
        f"{percent(of, 'attacked_accuracy')} / {percent(of, 'cra')}"
    ),
    "ECE": lambda of: three(of, "ece", percent),
    "NLL": lambda of: three(of, "nll", number),
    "AURC": lambda of: three(of, "aurc", percent),
    "robust sets: coverage under attack / size": lambda of: (
        f"{percent(of, 'robust_coverage')} / {number(of, 'robust_size')}"
    ),
    "AUROC, certified": lambda of: number(of, "certified_auroc", 3),
}


def table(rows):
    """A pair of tables for each set and budget: as they are, and under attack; the least NLL first."""
    lines = []
    for data, cpu in dict.fromkeys((row["data"], row["cpu"]) for row in rows):
        of = [row for row in rows if (row["data"], row["cpu"]) == (data, cpu)]
        named = {name: [row for row in of if row["method"] == name] for name in dict.fromkeys(r["method"] for r in of)}
        ranked = sorted(named.items(), key=lambda item: _middle(item[1], "nll"))
        seeds = sorted({row["seed"] for row in of})
        where = f"**{data}**, {cpu:g} CPU-seconds, seeds {', '.join(map(str, seeds))}"
        for title, columns in (
            (f"{where}; outliers are {OUTLIERS[data]}", AS_THEY_ARE),
            (f"{where}, attacked", UNDER_ATTACK),
        ):
            lines += [f"{title}.", "", "| method | " + " | ".join(columns) + " |", "|---" * (1 + len(columns)) + "|"]
            lines += [
                f"| {name} | " + " | ".join(show(its) for show in columns.values()) + " |" for name, its in ranked
            ]
            lines.append("")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("--data", nargs="*", default=list(OUTLIERS), choices=OUTLIERS)
    parser.add_argument("--data-dir")
    parser.add_argument("--cpu", type=float, nargs="*", default=[60.0])
    parser.add_argument("--methods", nargs="*", default=list(METHODS), choices=METHODS)
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--page", type=Path, help="write the tables into this page")
    arguments = parser.parse_args()
    rows = [json.loads(line) for line in arguments.results.open()] if arguments.results.exists() else []
    for cpu, seed, data, method in itertools.product(arguments.cpu, arguments.seeds, arguments.data, arguments.methods):
        wanted = {"method": method, "data": data, "cpu": cpu, "seed": seed}
        if any(wanted.items() <= row.items() for row in rows):
            continue
        row = one_run(**wanted, data_dir=arguments.data_dir)
        assert all(math.isfinite(value) for value in row.values() if isinstance(value, float)), row
        rows.append(row)
        with arguments.results.open("a") as file:
            file.write(json.dumps(row) + "\n")
    print(table(rows))
    if arguments.page:
        write_page(arguments.page, table(rows), "uncertainty")


if __name__ == "__main__":
    main()
