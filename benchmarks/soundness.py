"""Attack our own certificates: five networks of 32 x 32 pixels, trained at five constants, on real photographs.

python -m benchmarks.soundness --data-dir DIR           # CIFAR-10; an hour on one core; prints a Markdown table
python -m benchmarks.soundness --data-dir DIR --quick   # two minutes
"""

import argparse
import dataclasses
import time
from pathlib import Path

from lipscale import fit, get_lipschitz, models
from lipscale._random import seeded
from lipscale.certificates import audit
from lipscale.data import as_input, limit, load_dataset
from lipscale.data.dataset import channel_means
from lipscale.layers import mirrored

CONSTANTS = (0.01, 0.1, 1.0, 10.0, 128.0)


@dataclasses.dataclass(frozen=True)
class Case:
    """A network, and how much of it is attacked: what is fast is attacked more."""

    make: object
    samples: int
    pairs: int


CASES = {
    "mlp": Case(lambda mean: models.mlp(10, (3, 32, 32), 64, mean=mean), 2400, 1_950_000),
    "patchnet": Case(lambda mean: models.patchnet(10, 3, 16, mean=mean), 1400, 60_000),
    "patchnet, mirrored": Case(lambda mean: mirrored(models.patchnet(10, 3, 16, depth=1, mean=mean)), 200, 20_000),
    "convnet": Case(lambda mean: models.convnet(10, 3, 8, mean=mean), 400, 20_000),
    "resnet18": Case(lambda mean: models.resnet18(10, 3, 8, mean=mean), 200, 5_000),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    share, epochs = (0.02, 1) if arguments.quick else (1, 4)
    data = limit(load_dataset("cifar10", arguments.data_dir), 2000, seed=0)
    total = dict.fromkeys(("attacked", "pairs", "violations"), 0)
    print("| network | L | attacked | pairs | violations | steepest slope | bound | tightness |")
    print("|---|---|---|---|---|---|---|---|", flush=True)
    start = time.process_time()
    for name, case in CASES.items():
        for constant in CONSTANTS:
            with seeded(0, "weights"):
                net = case.make(channel_means(data.train))
            fit(net, data.train, method="fixed", lipschitz=constant, epochs=epochs, progress=False)
            inputs = as_input(data.test.inputs[: round(share * case.samples)])
            result = dataclasses.asdict(audit(net, inputs, pairs=round(share * case.pairs), steps=30))
            total = {key: value + result[key] for key, value in total.items()}
            numbers = "{attacked} | {pairs} | {violations} | {slope:.4g} | {bound:.7g} | {tightness:.3f}"
            print(f"| {name} | {get_lipschitz(net):.4g} | {numbers.format(**result)} |", flush=True)
    print(f"| all | | {total['attacked']} | {total['pairs']} | {total['violations']} | | | |")
    print(f"\n{time.process_time() - start:.0f} CPU seconds")


if __name__ == "__main__":
    main()
