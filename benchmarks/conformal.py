"""How large are robust conformal sets by each bound on the same network? Means over 20 halves of the test part.

python -m benchmarks.conformal RUN [--alpha 0.1]
"""

import argparse
import math

import torch

import lipscale
from lipscale._random import random_stream
from lipscale.certificates import ConformalScore, prove
from lipscale.certificates.conformal import box_lowest
from lipscale.certificates.probabilities import log_odds, logit_reach
from lipscale.data import as_input
from lipscale.runs import held_out_samples

EPSILONS = (0.0, 0.05, 0.1, 0.25, 0.5)
SPLITS = 20


def lowest_scores(certificate, epsilon):
    """By method: the scores of clean inputs, whose quantile decides, and the lowest within epsilon."""
    plain, logits = -log_odds(certificate.logits), -certificate.logits
    reach = logit_reach(certificate, epsilon)[0].unsqueeze(1)
    return {
        "lipscale: the ball": (plain, ConformalScore().lowest(certificate, epsilon)),
        "sqrt(2) L eps for every pair": (plain, plain - math.sqrt(2) * reach),
        "published box, softmax": (plain, box_lowest(certificate, epsilon)),
        # a sigmoid is monotone: whatever its temperature and bias, the logit decides
        "published box, sigmoid": (logits, logits - reach),
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("run")
    parser.add_argument("--alpha", type=float, default=0.1)
    given = parser.parse_args()
    run = lipscale.load(given.run)
    test = held_out_samples(run)
    certificate, labels = prove(run.net, test.inputs.shape[1:])(as_input(test.inputs)), test.labels.long()
    orders = [torch.randperm(len(labels), generator=random_stream(0, "conformal split", k)) for k in range(SPLITS)]
    rows = {}
    for epsilon in EPSILONS:
        for name, (scores, lowest) in lowest_scores(certificate, epsilon).items():
            sizes, shares = [], []
            for order in orders:
                calibrate, tested = order.tensor_split(2)
                q = ConformalScore().quantiles(scores[calibrate], labels[calibrate], given.alpha)
                sets = lowest[tested] <= q
                sizes.append(float(sets.sum(1).double().mean()))
                shares.append(float(sets.gather(1, labels[tested].unsqueeze(1)).double().mean()))
            cell = f"{sum(sizes) / SPLITS:.3f} ({100 * sum(shares) / SPLITS:.1f} %)"
            rows.setdefault(name, []).append(cell)
    print(f"| mean size (coverage) at epsilon | {' | '.join(map(str, EPSILONS))} |")
    print("|---" * (len(EPSILONS) + 1) + "|")
    for name, cells in rows.items():
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
