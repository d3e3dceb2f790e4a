"""The rules for L side by side on real data: epochs, seconds, L*, accuracy, ECE with its limit, certified accuracy.

python -m benchmarks.feedback results.jsonl --sets digits fashion cifar --seeds 0 1 2    # runs what the file lacks
python -m benchmarks.feedback results.jsonl --sets                                       # prints the tables only
python -m benchmarks.feedback results.jsonl --sets --figure curves.png                   # and draws L and T*
"""

import argparse
import json
import statistics
from dataclasses import asdict
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from lipscale.metrics import ece
from lipscale.report.theme import colour, style
from lipscale.runs import Settings, evaluate
from lipscale.runs.assembly import assemble, box_of, read_data, resolve
from lipscale.training import Training, algorithm_1

SETS = {
    "digits": {"data": "digits", "model": "mlp", "width": 256},
    "fashion": {"data": "fashion-mnist", "limit": 5000, "model": "mlp", "width": 128},
    "cifar": {"data": "cifar10", "limit": 5000, "model": "mlp", "width": 64},
    "convnet": {"data": "cifar10", "limit": 5000, "model": "convnet", "width": 8},
    "fashion60k": {"data": "fashion-mnist", "model": "mlp", "width": 128},
}
REFERENCE = {"feedback": "paper", "optimizer": "schedulefree"}
RULES = {
    "reference": {**REFERENCE, "epochs": 400, "phase2_epochs": 20},
    "steady": {"epochs": 40},
    "steady 20": {"epochs": 20},
    "paper, planned": {"feedback": "paper", "epochs": 40, "window": 30},
    "steady, schedulefree": {"optimizer": "schedulefree", "epochs": 400, "phase2_epochs": 20},
    **{f"steady L0={start}": {"epochs": 40, "lipschitz": start} for start in (0.01, 0.1, 10.0)},
}
STARTS = ("steady L0=0.01", "steady L0=0.1", "steady", "steady L0=10.0")
COMPARED = (40,)  # epochs of Phase I at which the reference is measured on the way
EPSILONS = (36 / 255, 0.25, 0.5)


def one_run(data, rule, seed, change):
    """A row for each point of the run that is compared: at 40 epochs, at the end of Phase I, at the end."""
    settings = Settings.model_validate({**SETS[data], **RULES[rule], **change, "seed": seed, "device": "cpu"})
    dataset, preprocessing = read_data(settings)
    settings = resolve(settings, dataset, preprocessing)
    parts = assemble(settings, dataset, preprocessing)
    training = Training(parts.net, parts.train, parts.calibration, settings, box=box_of(preprocessing))
    curve, rows = [], []

    def measure(epoch):
        curve.append((epoch.lipschitz, epoch.temperature, epoch.temperature_error))
        ends = training.scheduler.frozen if epoch.phase == 1 else epoch.epoch == training.plan.phase2_epochs
        if not ends and not (epoch.phase == 1 and epoch.epoch in COMPARED):
            return
        error = next((e for _, t, e in reversed(curve) if t is not None), 0.0)
        found = evaluate(training.net, dataset.test, epsilons=EPSILONS, calibration_size=training.calibration.size)
        rows.append(
            {
                **{"set": data, "rule": rule, "seed": seed, "change": change},
                "point": f"phase {epoch.phase} end" if ends else f"epoch {epoch.epoch}",
                "epochs": len(curve),
                "seconds": training.seconds,
                "settled": training.scheduler.converged,
                "error": error,
                **asdict(found.metrics),
                # with T* fitted on the test set itself: the error that no L can mend
                "ece_left": float(ece(found.logits / (found.metrics.temperature or 1.0), found.labels)),
            }
        )
        print(json.dumps(rows[-1]), flush=True)

    algorithm_1(training, on_epoch=measure)
    rows[-1]["curve"] = curve
    return rows


def show(rows):
    points = sorted({(r["set"], r["rule"], r["point"]) for r in rows})
    print("| set | rule | point | seeds | epochs | seconds | L | s(log T*) | accuracy | ECE (limit)", end=" ")
    print("| 36/255 | 0.25 | 0.5 |\n" + "|---" * 13 + "|")
    for data, rule, point in points:
        chosen = [r for r in rows if (r["set"], r["rule"], r["point"]) == (data, rule, point)]

        def cell(get, digits, chosen=chosen):
            values = [get(r) for r in chosen]
            spread = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
            return f"{statistics.mean(values):.{digits}f}{spread}"

        certified = [cell(lambda r, k=k: r["certified_accuracy"][k], 3) for k in ("0.1412", "0.25", "0.5")]
        cells = [
            *(data, rule, point, str(len(chosen))),
            cell(lambda r: r["epochs"], 0),
            cell(lambda r: r["seconds"], 0),
            cell(lambda r: r["lipschitz_constant"], 2),
            cell(lambda r: r["error"], 3),
            cell(lambda r: r["accuracy"], 3),
            f"{cell(lambda r: r['ece'], 3)} ({statistics.mean(r['ece_limit'] for r in chosen):.3f})",
            *certified,
        ]
        print(f"| {' | '.join(cells)} |")


def show_starts(rows):
    """How far L* depends on L0, where all starts of a seed were run."""
    ended = {}
    for row in (r for r in rows if r["point"] == "phase 2 end"):
        ended.setdefault((row["set"], row["seed"]), {})[row["rule"]] = row
    complete = {key: found for key, found in sorted(ended.items()) if all(rule in found for rule in STARTS)}
    if complete:
        print("\n| set | seed | L* from L0 = 0.01, 0.1, 1, 10 | range | standard deviation | s(log T*) |")
        print("|---" * 6 + "|")
    for (data, seed), found in complete.items():
        constants = [found[rule]["lipschitz_constant"] for rule in STARTS]
        mean = statistics.mean(constants)
        spreads = (
            (max(constants) - min(constants)) / mean,
            statistics.stdev(constants) / mean,
            found["steady"]["error"],
        )
        listed = ", ".join(f"{c:.3g}" for c in constants)
        print(f"| {data} | {seed} | {listed} | {' | '.join(f'{spread:.1%}' for spread in spreads)} |")


def draw(rows, path):
    """L and T* over the epochs of Phase I, a column for each set, a line for each seed."""
    runs = [r for r in rows if "curve" in r and r["rule"] in ("reference", "steady")]
    names = [name for name in SETS if any(r["set"] == name for r in runs)]
    with style():
        figure = Figure(figsize=(3 * len(names), 4.6), layout="constrained")
        panels = figure.subplots(2, len(names), sharex=True, squeeze=False)
        for name, (above, below) in zip(names, panels.T, strict=True):
            for run in (r for r in runs if r["set"] == name):
                curve = [(lipschitz, t) for lipschitz, t, _ in run["curve"] if t is not None]
                for axes, values in zip((above, below), zip(*curve, strict=True), strict=True):
                    axes.loglog(
                        range(1, len(curve) + 1), values, color=colour(run["rule"] == "steady"), lw=1, alpha=0.8
                    )
            above.set_title(name, fontsize=10)
            for axis in (below.xaxis, above.yaxis, below.yaxis):  # a range may hold no power of ten
                axis.set_major_locator(LogLocator(subs=(1, 3) if axis is below.xaxis else (1, 1.5, 2, 3, 5)))
                axis.set_major_formatter("{x:g}")
                axis.set_minor_locator(NullLocator())
            below.axhline(1, color="grey", lw=0.5)
            below.set_ylim(0.3, 1.5)
            below.set_xlabel("epoch of Phase I")
        panels[0, 0].set_ylabel("L")
        panels[1, 0].set_ylabel("T*")
        for rule in sorted({r["rule"] for r in runs}):
            panels[0, 0].plot([], [], color=colour(rule == "steady"), label=rule)
        panels[0, 0].legend(fontsize=8)
        figure.savefig(path, dpi=110)
    print(f"\nFigure: {path}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("--sets", nargs="*", choices=SETS, default=["digits", "fashion", "cifar"])
    parser.add_argument("--rules", nargs="*", choices=RULES, default=["steady", "reference"])
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    parser.add_argument("--change", nargs="*", default=[], help="settings to try, such as learning_rate=0.1")
    parser.add_argument("--figure", type=Path, help="where to draw L and T* over the epochs")
    arguments = parser.parse_args()
    change = dict(pair.split("=") for pair in arguments.change)
    lines = arguments.results.read_text().splitlines() if arguments.results.exists() else []
    rows = [json.loads(line) for line in lines]
    if any(row.get("change", {}) != change for row in rows):
        parser.error(
            f"{arguments.results} holds runs of other settings than {arguments.change}: give each its own file"
        )
    for seed in arguments.seeds:
        for data in arguments.sets:
            for rule in arguments.rules:
                if not any((r["set"], r["rule"], r["seed"]) == (data, rule, seed) for r in rows):
                    new = one_run(data, rule, seed, change)
                    with arguments.results.open("a") as file:
                        file.writelines(json.dumps(row) + "\n" for row in new)
                    rows += new
    show(rows)
    show_starts(rows)
    if arguments.figure:
        draw(rows, arguments.figure)


if __name__ == "__main__":
    main()
