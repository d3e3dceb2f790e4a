"""The rules for L side by side on real data: epochs, seconds, L*, accuracy, ECE with its limit, certified accuracy.

python -m benchmarks.feedback results.jsonl --sets digits fashion cifar --seeds 0 1 2    # runs what the file lacks
python -m benchmarks.feedback results.jsonl --sets                                       # prints the tables only
"""

import argparse
import json
import statistics
from pathlib import Path

from lipscale.assemble import new_training, read_data, resolve
from lipscale.config import Settings, planned_epochs
from lipscale.evaluate import evaluate
from lipscale.metrics import ece

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


def one_run(data, rule, seed):
    """A row for each point of the run that is compared: at 40 epochs, at the end of Phase I, at the end."""
    settings = Settings.model_validate({**SETS[data], **RULES[rule], "seed": seed, "device": "cpu"})
    dataset, preprocessing = read_data(settings)
    settings = resolve(settings, dataset, preprocessing)
    training = new_training(settings, dataset, preprocessing)
    curve, rows = [], []

    def measure(epoch):
        curve.append((epoch.lipschitz, epoch.temperature, epoch.temperature_error))
        ends = (
            training._is_over(training.phase1_epochs)
            if epoch.phase == 1
            else epoch.epoch == planned_epochs(settings)[1]
        )
        if not ends and not (epoch.phase == 1 and epoch.epoch in COMPARED):
            return
        error = next((e for _, t, e in reversed(curve) if t is not None), 0.0)
        found = evaluate(training.net, dataset.test, epsilons=EPSILONS, calibration_size=len(training.calibration))
        rows.append(
            {
                **{"set": data, "rule": rule, "seed": seed},
                "point": f"phase {epoch.phase} end" if ends else f"epoch {epoch.epoch}",
                "epochs": len(curve),
                "seconds": training.seconds,
                "settled": training.feedback.settled,
                "error": error,
                **found.metrics,
                # with T* fitted on the test set itself: the error that no L can mend
                "ece_left": float(ece(found.logits / (found.metrics["temperature"] or 1.0), found.labels)),
            }
        )
        print(json.dumps(rows[-1]), flush=True)

    training.on_epoch = measure
    training.run()
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
    print(
        "\n| set | seed | L* from L0 = 0.01, 0.1, 1, 10 | range | standard deviation | s(log T*) |\n" + "|---" * 6 + "|"
    )
    for data, seed in sorted({(r["set"], r["seed"]) for r in rows}):
        found = {r["rule"]: r for r in rows if (r["set"], r["seed"], r["point"]) == (data, seed, "phase 2 end")}
        if not all(rule in found for rule in STARTS):
            continue
        constants = [found[rule]["lipschitz_constant"] for rule in STARTS]
        mean = statistics.mean(constants)
        spreads = (
            (max(constants) - min(constants)) / mean,
            statistics.stdev(constants) / mean,
            found["steady"]["error"],
        )
        listed = ", ".join(f"{c:.3g}" for c in constants)
        print(f"| {data} | {seed} | {listed} | {' | '.join(f'{spread:.1%}' for spread in spreads)} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("--sets", nargs="*", choices=SETS, default=["digits", "fashion", "cifar"])
    parser.add_argument("--rules", nargs="*", choices=RULES, default=["steady", "reference"])
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    parser.add_argument("--change", nargs="*", default=[], help="settings to try, such as learning_rate=0.1")
    arguments = parser.parse_args()
    for change in arguments.change:
        key, value = change.split("=")
        for rule in RULES.values():
            rule[key] = value
    rows = (
        [json.loads(line) for line in arguments.results.read_text().splitlines()] if arguments.results.exists() else []
    )
    for seed in arguments.seeds:
        for data in arguments.sets:
            for rule in arguments.rules:
                if not any((r["set"], r["rule"], r["seed"]) == (data, rule, seed) for r in rows):
                    new = one_run(data, rule, seed)
                    with arguments.results.open("a") as file:
                        file.writelines(json.dumps(row) + "\n" for row in new)
                    rows += new
    show(rows)
    show_starts(rows)


if __name__ == "__main__":
    main()
