"""Attack our own certificates: three networks, trained at five constants and untrained, on the real digits.

python -m benchmarks.soundness            # about a quarter of an hour on one core; prints a Markdown table
python -m benchmarks.soundness --quick    # a minute
"""

import argparse
import dataclasses
import time

import torch

from lipscale import estimate_means, fit, get_lipschitz, models, set_lipschitz
from lipscale._random import seeded
from lipscale.certificates import audit
from lipscale.data import load_dataset
from lipscale.data.dataset import channel_means

CONSTANTS = (0.01, 0.1, 1.0, 10.0, 128.0)
NETWORKS = {
    "mlp": lambda mean: models.mlp(10, (1, 8, 8), 64, mean=mean),
    "convnet": lambda mean: models.convnet(10, 1, 8, mean=mean),
    "resnet18": lambda mean: models.resnet18(10, 1, 8, mean=mean),
}


def network(name, constant, digits, epochs):
    """One of the networks, trained at a fixed constant."""
    with seeded(0, "weights"):
        net = NETWORKS[name](channel_means(digits.train))
    if epochs:
        fit(net, digits.train, method="fixed", lipschitz=constant, epochs=epochs, progress=False)
    else:
        set_lipschitz(net, constant)
        estimate_means(net.eval(), [digits.train.inputs])
    return net


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    samples, pairs, epochs = (60, 2_000, 2) if quick else (600, 56_000, 10)
    digits = load_dataset("digits")
    inputs = torch.cat((digits.test.inputs, digits.train.inputs))[:samples]
    total = dict.fromkeys(("attacked", "pairs", "violations"), 0)
    print("| network | L | trained | attacked | pairs | violations | steepest slope | bound | tightness |")
    print("|---|---|---|---|---|---|---|---|---|", flush=True)
    start = time.perf_counter()
    for name in NETWORKS:
        for constant, trained in [*((c, True) for c in CONSTANTS), (1.0, False)]:
            net = network(name, constant, digits, epochs if trained else 0)
            result = dataclasses.asdict(audit(net, inputs, pairs=pairs, steps=30))
            total = {key: value + result[key] for key, value in total.items()}
            numbers = "{attacked} | {pairs} | {violations} | {slope:.4g} | {bound:.7g} | {tightness:.3f}"
            row = numbers.format(**result)
            print(f"| {name} | {get_lipschitz(net):.4g} | {'yes' if trained else 'no'} | {row} |", flush=True)
    print(f"| all | | | {total['attacked']} | {total['pairs']} | {total['violations']} | | | |")
    print(f"\n{time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
