"""What holding the Lipschitz constant costs: lipscale against its unconstrained twin and the peers, in one run.

python -m benchmarks                 # about ten minutes on two idle cores; a Markdown report
python -m benchmarks --quick         # about two minutes: widths 16 and 32, few rounds
python -m benchmarks --json          # the numbers for a program
python -m benchmarks --check         # exit code 1 where a ratio is above its limit
python -m benchmarks --only train_step,peak_memory
"""

import argparse
import json
import platform
import sys
from dataclasses import asdict
from datetime import UTC, datetime

import torch

from benchmarks.contestants import BATCH, CONTESTANTS, EXTRA, Contestant
from benchmarks.measure import interleaved, peak_memory
from benchmarks.steering import certification, feedback_share, temperature
from lipscale import models

STEPS = {"train_step": "train_step", "train_step_bfloat16": "train_step_bfloat16", "eval_forward": "predict"}
SECTIONS = (*STEPS, "peak_memory", "temperature", "feedback_share", "certification", "growth")
# ratios only: seconds say more about the machine than about the code
LIMITS = {
    "train_step": {"16": 1.6, "64": 1.25},  # lipscale / twin
    "train_step_bfloat16": {"16": 1.45, "64": 1.4},
    "eval_forward": {"16": 1.1, "32": 1.1, "64": 1.1},
    "peak_memory": {"16": 1.3, "32": 1.3, "64": 1.3},
}
LEAST_SPEEDUP = {"16": 1.8, "64": 1.8}  # orthogonium / lipscale
MOST_FEEDBACK, LEAST_TEMPERATURE_SPEEDUP, MOST_DERIVATIVE = 0.10, 3.0, 1e-8


def run(sections, quick, say):
    """All asked-for measurements, as one dictionary of plain numbers."""
    result = {
        "machine": {
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
            "batch": BATCH,
            "quick": quick,
        },
        "spread": {},
    }
    for width in (16, 32) if quick else (16, 32, 64):
        rounds = 3 if quick else {16: 15, 32: 9, 64: 5}[width]
        _steps(result, sections, width, rounds, quick, say)
    if "temperature" in sections:
        say("T*")
        result["temperature"] = temperature((5_000,) if quick else (5_000, 50_000, 500_000), 5)
    if "growth" in sections and not quick:
        result["growth"] = _growth(say)
    return result


def _steps(result, sections, width, rounds, quick, say):
    key = str(width)
    contestants = {name: Contestant(parts, width) for name, parts in CONTESTANTS.items()}
    if not quick:
        contestants |= {name: Contestant(parts, width) for name, parts in EXTRA.items()}
    for section, method in STEPS.items():
        if section in sections or (section == "train_step" and "feedback_share" in sections):
            say(f"{section}, width {width}")
            # a forward pass is short, and its median of few rounds jumps by more than its limit allows for
            enough = max(rounds, 15) if section == "eval_forward" and width < 64 else rounds
            timings = interleaved({name: getattr(c, method) for name, c in contestants.items()}, enough)
            result.setdefault(section, {})[key] = {name: t.median for name, t in timings.items()}
            result["spread"].setdefault(section, {})[key] = {name: asdict(t) for name, t in timings.items()}
    if "feedback_share" in sections:
        say(f"feedback, width {width}")
        step = result["train_step"][key]["lipscale"]
        share = 0.2 if quick or width > 16 else 1.0
        result.setdefault("feedback_share", {})[key] = feedback_share(contestants["lipscale"], step, share=share)
    if "certification" in sections:
        say(f"certification, width {width}")
        result.setdefault("certification", {})[key] = certification(Contestant(CONTESTANTS["lipscale"], width))
    del contestants
    if "peak_memory" in sections:
        say(f"peak memory, width {width}")
        result.setdefault("peak_memory", {})[key] = {name: peak_memory(name, width) for name in CONTESTANTS}


def _growth(say):
    """How the training step's ratio to the twin moves with batch, image size and depth, at width 16."""
    cases = {f"batch {batch}": {"batch": batch} for batch in (32, 128, 512)}
    cases |= {f"{size} x {size} pixels": {"size": size} for size in (16, 32, 64)}
    cases |= {
        "6 layers": {"make": models.convnet},
        "18 layers": {},
        "channels last": {"channels_last": True},
    }
    found = {}
    for case, options in cases.items():
        say(case)
        calls = {
            name: Contestant(parts, 16, **options).train_step
            for name, parts in CONTESTANTS.items()
            if name != "orthogonium" or not options.get("channels_last")
        }
        found[case] = {name: t.median for name, t in interleaved(calls, 5).items()}
    return found


def report(result):
    """The numbers as Markdown tables."""
    lines = []
    for section, unit in (*((step, "s") for step in STEPS), ("peak_memory", "MB")):
        if section not in result:
            continue
        names = list(dict.fromkeys(name for row in result[section].values() for name in row))
        lines += ["", f"### {section.replace('_', ' ')}", "", "| width | " + " | ".join(names) + " | |"]
        lines += ["|---" * (len(names) + 2) + "|"]
        for width, row in result[section].items():
            cells = [f"{row[name] / row['twin']:.2f}" if name in row else "" for name in names]
            lines += [f"| {width} | {' | '.join(cells)} | twin: {row['twin']:.3g} {unit} |"]
    for n, row in result.get("temperature", {}).items():
        times = ", ".join(f"{k} {1e3 * v['seconds']:.3g} ms (derivative {v['derivative']:.0e})" for k, v in row.items())
        lines += ["", f"T* on {n} x 10: {times}"]
    for width, share in result.get("feedback_share", {}).items():
        lines += ["", f"feedback at width {width}: {share:.1%} of an epoch of 45,000 / 5,000 images"]
    for width, row in result.get("certification", {}).items():
        exact, then = row["exact_weights"], row["certificate"]
        lines += ["", f"certification at width {width}: exact weights {exact:.2f} s, then {then:.2f} s"]
    if "growth" in result:
        lines += ["", "### train step at width 16", "", "| case | orthogonium | lipscale | |", "|---|---|---|---|"]
        for case, row in result["growth"].items():
            peer = f"{row['orthogonium'] / row['twin']:.2f}" if "orthogonium" in row else ""
            lines += [f"| {case} | {peer} | {row['lipscale'] / row['twin']:.2f} | twin: {row['twin']:.3g} s |"]
    return "\n".join(lines)


def failures(result):
    """Every ratio that is not within its limit, in words."""
    found = []
    for section, limits in LIMITS.items():
        for width, limit in limits.items():
            row = result.get(section, {}).get(width)
            if row and row["lipscale"] / row["twin"] > limit:
                found.append(
                    f"{section} at width {width}: {row['lipscale'] / row['twin']:.2f} x the twin, limit {limit}"
                )
    for width, least in LEAST_SPEEDUP.items():
        row = result.get("train_step", {}).get(width)
        if row and row["orthogonium"] / row["lipscale"] < least:
            found.append(
                f"train_step at width {width}: {row['orthogonium'] / row['lipscale']:.2f} x faster than the peers"
            )
    found += [
        f"feedback at width {width}: {share:.1%} of an epoch"
        for width, share in result.get("feedback_share", {}).items()
        if share > MOST_FEEDBACK
    ]
    row = result.get("temperature", {}).get("5000")
    if row and row["scipy"]["seconds"] / row["lipscale"]["seconds"] < LEAST_TEMPERATURE_SPEEDUP:
        found.append("T* is less than 3 x faster than scipy's bounded minimiser")
    if row and row["lipscale"]["derivative"] > MOST_DERIVATIVE:
        found.append(f"T* leaves a derivative of {row['lipscale']['derivative']:.1e}")
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="widths 16 and 32, few rounds")
    parser.add_argument("--json", action="store_true", help="print JSON: seconds, megabytes and shares")
    parser.add_argument("--check", action="store_true", help="exit with 1 where a ratio is above its limit")
    parser.add_argument("--only", help=f"some of {','.join(SECTIONS)}")
    options = parser.parse_args()
    sections = options.only.split(",") if options.only else SECTIONS
    if unknown := set(sections) - set(SECTIONS):
        parser.error(f"unknown section {sorted(unknown)[0]!r}: one of {', '.join(SECTIONS)}")

    result = run(sections, options.quick, lambda text: print(f"... {text}", file=sys.stderr, flush=True))
    print(json.dumps(result, indent=2) if options.json else report(result))
    broken = failures(result)
    for line in broken:
        print(f"above its limit: {line}", file=sys.stderr)
    return 1 if options.check and broken else 0


if __name__ == "__main__":
    sys.exit(main())
