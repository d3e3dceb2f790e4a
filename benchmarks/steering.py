"""What steering L costs: T* against other minimisers, and the feedback's share of an epoch."""

import time

import numpy as np
import torch
from scipy.optimize import minimize_scalar
from scipy.special import logsumexp

from benchmarks.contestants import BATCH, SIZE
from benchmarks.measure import interleaved
from lipscale import certify
from lipscale.calibration.temperature import fit_temperature
from lipscale.data import Samples
from lipscale.layers import estimate_means, evaluation_mode
from lipscale.training.inference import predict_logits

TRAIN, CALIBRATION, CENTERING_BATCHES = 45_000, 5_000, 50


def temperature(sizes, rounds):
    """Seconds for T* on n x 10 logits, and how far the mean NLL's derivative in 1 / T is from zero there."""
    return {str(n): _temperature(n, rounds) for n in sizes}


def _temperature(n, rounds):
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(n, 10, generator=generator)
    labels = torch.multinomial(torch.softmax(logits / 1.7, 1), 1, generator=generator).squeeze(1)
    z, y, rows = logits.double().numpy(), labels.numpy(), np.arange(n)

    def nll(t):
        return float((logsumexp(z / t, axis=1) - z[rows, y] / t).mean())

    def by_scipy():
        return float(minimize_scalar(nll, bounds=(0.05, 20), method="bounded").x)

    def by_lbfgs():  # the settings of the original temperature-scaling code
        t = torch.full((1,), 1.5, requires_grad=True)
        optimizer = torch.optim.LBFGS([t], lr=0.01, max_iter=50)

        def closure():
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(logits / t, labels)
            loss.backward()
            return loss

        optimizer.step(closure)
        return t.item()

    def derivative(t):
        p = np.exp(z / t - logsumexp(z / t, axis=1, keepdims=True))
        return float(((p * z).sum(1) - z[rows, y]).mean())

    calls = {"lipscale": lambda: fit_temperature(logits, labels), "scipy": by_scipy, "lbfgs": by_lbfgs}
    timings = interleaved(calls, rounds)
    return {
        name: {"seconds": timings[name].median, "derivative": abs(derivative(call()))} for name, call in calls.items()
    }


def feedback_share(contestant, step_seconds, *, share=1.0):
    """The part of an epoch (45,000 / 5,000 images) that goes into centering, calibration logits and T*.

    `share` < 1 measures on fewer images and scales up what grows with them.
    """
    centering, calibration = round(share * CENTERING_BATCHES), round(share * CALIBRATION)
    samples = Samples(
        torch.randint(256, (calibration, 3, SIZE, SIZE), dtype=torch.uint8), torch.randint(10, (calibration,))
    )
    start = time.perf_counter()
    contestant.optimizer.eval()
    with evaluation_mode(contestant.net):
        contestant.predict()  # the exact weights, once an epoch
    once = time.perf_counter() - start
    with evaluation_mode(contestant.net):
        estimate_means(contestant.net, [contestant.inputs] * centering)
        fit_temperature(predict_logits(contestant.net, samples), samples.labels)
    scaled = once + (time.perf_counter() - start - 2 * once) / share
    return scaled / (scaled + step_seconds * TRAIN / BATCH)


def certification(contestant):
    """Seconds for the proven bound and the pairwise constants, and for the exact weights that they are of."""
    contestant.net.eval()
    start = time.perf_counter()
    contestant.predict()
    exact = time.perf_counter() - start
    start = time.perf_counter()
    certify(contestant.net, contestant.inputs)
    return {"exact_weights": exact, "certificate": time.perf_counter() - start}
