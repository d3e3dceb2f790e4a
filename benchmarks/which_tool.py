"""Which tool when: calibrators, conformal sets, smoothing, adversarial training and lipscale on the same images.

OMP_NUM_THREADS=1 python -m benchmarks.which_tool                    # the table of docs/WHICH_TOOL.md, some CPU-minutes
OMP_NUM_THREADS=1 python -m benchmarks.which_tool --data digits --epochs 5 --seeds 0     # a quick look

Every tool gets the same training images, an MLP of the same size and the same epochs (twice as many where it trains on
noise). Accuracy and ECE are of all test images; what is certified and what PGD leaves (l2, the larger epsilon) are of
the same few hundred of them. Seconds are the processor's. MAPIE: pip install mapie.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from mapie.classification import SplitConformalClassifier
from scipy.stats import beta, norm
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.calibration import CalibratedClassifierCV
from torch import nn

import lipscale
from lipscale import attacks, metrics, models
from lipscale.calibration.posthoc import TemperatureScaling
from lipscale.certificates import prove
from lipscale.data import limit, load_dataset, split_calibration

EPSILONS = 0.25, 0.5
WIDTH, TRAIN, ATTACKED = 128, 5000, 500
SIGMAS = 0.25, 0.5
FIRST, JUDGED, DRAWS, ALPHA = 100, 1000, 4000, 0.001  # of smoothing; Cohen et al. draw 100,000
COVERAGE = 0.9


@dataclass
class Found:
    """What one tool reached: answers are probabilities (N, C) of all test images, radii those of the attacked ones."""

    answers: torch.Tensor
    seconds: float
    classify: Callable[[torch.Tensor], torch.Tensor]
    surrogate: nn.Module  # what the attack takes its gradients of
    radii: torch.Tensor | None = None
    milliseconds: float | None = None
    note: str = ""


# --- networks ---


def network(parts, inputs, classes, seed):
    """An MLP on flat images that subtracts their mean."""
    torch.manual_seed(seed)
    return models.mlp(classes, inputs.shape[1], WIDTH, mean=[float(inputs.mean())] * inputs.shape[1], parts=parts)


class Noise(nn.Module):
    """Gaussian noise in training: what a smoothed classifier's network must cope with."""

    def __init__(self, sigma):
        super().__init__()
        self.sigma = sigma

    def forward(self, x):
        return x + self.sigma * torch.randn_like(x) if self.training else x


class Twin(ClassifierMixin, BaseEstimator):
    """The unconstrained network behind scikit-learn's interface."""

    def __init__(self, method="standard", epochs=20, seed=0, sigma=0.0):
        self.method, self.epochs, self.seed, self.sigma = method, epochs, seed, sigma

    def fit(self, X, y):
        inputs, labels = torch.as_tensor(X), torch.as_tensor(y)
        self.classes_ = np.unique(y)
        net = network(models.UNCONSTRAINED, inputs, len(self.classes_), self.seed)
        seen = nn.Sequential(Noise(self.sigma), net) if self.sigma else net
        how = {"method": self.method, "epochs": self.epochs, "seed": self.seed, "attack_epsilon": EPSILONS[-1]}
        done = lipscale.fit(seen, (inputs, labels), progress=False, box=(0, 1), **how)
        self.net_, self.seconds_ = net.eval(), done.cpu_seconds
        return self

    def predict_proba(self, X):
        with torch.no_grad():
            return self.net_(torch.as_tensor(X)).double().softmax(1).numpy()

    def predict(self, X):
        return self.classes_[self.predict_proba(X).argmax(1)]


def alone(twin, test):
    """What a network by itself does; it certifies nothing."""
    answers = torch.from_numpy(twin.predict_proba(test))
    return Found(answers, twin.seconds_, lambda x: twin.net_(x).argmax(1), twin.net_)


# --- tools ---


def tools(data, epochs, seed):
    """Name and result of every tool, one after the other."""
    train, test = data.train, data.test.inputs
    few = test[:ATTACKED]
    part, held_out = split_calibration(train, 0.1, seed=seed, classes=data.classes)
    yield "the network alone", alone(Twin(epochs=epochs, seed=seed).fit(train.inputs, train.labels), test)

    twin = Twin(epochs=epochs, seed=seed).fit(part.inputs, part.labels)
    plain = alone(twin, test)
    with torch.no_grad():
        scaling = TemperatureScaling().fit(twin.net_(held_out.inputs).double(), held_out.labels)
        scaled = scaling.transform(twin.net_(test).double()).softmax(1)
    yield "temperature scaling", Found(scaled, plain.seconds, plain.classify, plain.surrogate)
    for method in ("sigmoid", "temperature"):
        yield f"CalibratedClassifierCV, {method}", cross_validated(train, test, epochs, seed, method)
    yield f"MAPIE, sets of {COVERAGE:.0%}", conformal(twin, plain, held_out, data.test)
    adversarial = Twin("pgd-at", epochs, seed).fit(train.inputs, train.labels)
    yield "adversarial training (pgd-at)", alone(adversarial, test)
    for sigma in SIGMAS:
        # noise takes longer to learn: about lipscale's processor time
        noisy = Twin(epochs=2 * epochs, seed=seed, sigma=sigma).fit(train.inputs, train.labels)
        yield f"randomized smoothing, σ = {sigma:g}", smoothed(noisy, test, few, seed)
    for offset in (0, 2):
        name = f"lipscale, offset {offset}" if offset else "lipscale"
        yield name, lipschitz(train, test, few, len(data.classes), epochs, seed, offset)


def cross_validated(train, test, epochs, seed, method):
    """Networks on four fifths each, calibrated on the fifth that they have not seen; sigmoid is the default."""
    start = time.process_time()
    model = CalibratedClassifierCV(Twin(epochs=epochs, seed=seed), method=method).fit(
        train.inputs.numpy(), train.labels
    )
    seconds = time.process_time() - start
    nets = nn.ModuleList(one.estimator.net_ for one in model.calibrated_classifiers_)
    answers = torch.from_numpy(model.predict_proba(test.numpy()))
    return Found(answers, seconds, lambda x: torch.from_numpy(model.predict(x.numpy())), Mean(nets))


class Mean(nn.Module):
    """The logarithm of the mean probability of several networks."""

    def __init__(self, nets):
        super().__init__()
        self.nets = nets

    def forward(self, x):
        return torch.stack([net(x).softmax(1) for net in self.nets]).mean(0).log()


def conformal(twin, plain, held_out, test):
    """Sets that hold the true class in nine of ten cases: how often they do, and how large they are."""
    sets = SplitConformalClassifier(twin, confidence_level=COVERAGE, prefit=True)
    sets.conformalize(held_out.inputs.numpy(), held_out.labels.numpy())
    held = sets.predict_set(test.inputs.numpy())[1][:, :, 0]
    right = held[np.arange(len(held)), test.labels.numpy()].mean()
    note = f"{right:.1%} of the sets hold the class, {held.sum(1).mean():.2f} classes a set"
    return Found(plain.answers, plain.seconds, plain.classify, plain.surrogate, note=note)


def lipschitz(train, test, few, classes, epochs, seed, offset):
    """LiST, and what is proven of it; the proof is made once, then every sample takes a forward pass."""
    net = network(models.LIPSCHITZ, train.inputs, classes, seed)
    done = lipscale.fit(net, (train.inputs, train.labels), epochs=epochs, offset=offset, seed=seed, progress=False)
    start = time.process_time()
    proof = prove(net, test.shape[1:])
    once, start = time.process_time() - start, time.process_time()
    radii = torch.cat([proof(x[None]).radius() for x in few])
    each = 1e3 * (time.process_time() - start) / len(few)
    note = f"L = {done.lipschitz:.2f}; {1e3 * once:.0f} ms once for the proof"
    answers = proof(test).logits.softmax(1)
    return Found(answers, done.cpu_seconds, lambda x: proof(x).logits.argmax(1), net, radii, each, note)


# --- randomized smoothing (Cohen et al., 2019) ---


def votes(net, inputs, draws, sigma, generator):
    """How many of `draws` noisy copies of each input get each class: (N, C)."""
    counts = []
    for x in inputs:
        noisy = x + sigma * torch.randn(draws, len(x), generator=generator)
        answers = net(noisy)
        counts.append(torch.bincount(answers.argmax(1), minlength=answers.shape[1]))
    return torch.stack(counts)


def certified(net, inputs, sigma, generator):
    """CERTIFY: the class, and R = sigma Phi^-1(p) with p Clopper and Pearson's lower limit of its share, (N,) each.

    It is chosen on other draws than it is proven by; where p is below one half, nothing is proven.
    """
    chosen = votes(net, inputs, FIRST, sigma, generator).argmax(1)
    counts = votes(net, inputs, DRAWS, sigma, generator).gather(1, chosen[:, None]).squeeze(1).numpy()
    lower = np.where(counts > 0, beta.ppf(ALPHA, np.maximum(counts, 1), DRAWS - counts + 1), 0.0)
    return chosen, torch.from_numpy(sigma * norm.ppf(lower).clip(min=0))


@torch.no_grad()
def smoothed(twin, test, few, seed):
    """The answer of most noisy copies, and how far it is proven to stay; confidence is the share of the copies."""
    net, sigma, generator = twin.net_, twin.sigma, torch.Generator().manual_seed(seed)
    answers = votes(net, test, FIRST, sigma, generator).double() / FIRST
    start = time.process_time()
    chosen, radii = certified(net, few, sigma, generator)
    each = 1e3 * (time.process_time() - start) / len(few)
    radii = torch.where(answers[: len(few)].argmax(1) == chosen, radii, 0.0)
    noises = sigma * torch.randn(16, test.shape[1], generator=generator)
    surrogate = Mean(nn.ModuleList(Shifted(net, noise) for noise in noises))
    note = f"{DRAWS:,} noisy copies a sample, fails with probability {ALPHA:g}"
    return Found(
        answers,
        twin.seconds_,
        lambda x: votes(net, x, JUDGED, sigma, generator).argmax(1),
        surrogate,
        radii,
        each,
        note,
    )


class Shifted(nn.Module):
    """A network on inputs with one draw of noise."""

    def __init__(self, net, noise):
        super().__init__()
        self.net, self.noise = net, noise

    def forward(self, x):
        return self.net(x + self.noise)


# --- the table ---


def measured(found, data, seed):
    """The numbers of one tool: accuracy, ECE, certified at both epsilons, attacked, seconds, milliseconds."""
    labels, few = data.test.labels.long(), data.test.inputs[:ATTACKED]
    right = found.answers.argmax(1) == labels
    kept, known = right[:ATTACKED], labels[:ATTACKED]
    stream = torch.Generator().manual_seed(seed)
    left = kept.clone()
    for attack in (attacks.pgd, attacks.worst_points):  # up to the first error, and to the end: it need not be the last
        points = attack(found.surrogate, few, known, epsilon=EPSILONS[-1], steps=40, box=(0, 1), generator=stream)
        with torch.no_grad():
            left &= found.classify(points) == known
    proven = [np.nan if found.radii is None else share(kept & (found.radii >= epsilon)) for epsilon in EPSILONS]
    error = metrics.ece(found.answers, labels, probabilities=True)
    return [share(right), error, *proven, share(left), found.seconds, found.milliseconds or np.nan]


def share(mask):
    return float(mask.double().mean())


def row(name, found, note):
    """A line of the table: means over seeds, with their standard deviation."""
    means, spread = np.mean(found, 0), np.std(found, 0)
    cells = [f"{100 * m:.1f} ± {100 * s:.1f}" for m, s in zip(means[:5], spread[:5], strict=True)]
    cells += [f"{means[5]:.0f}", f"{means[6]:.2g}"]
    return f"| {name} | {' | '.join('none' if 'nan' in cell else cell for cell in cells)} | {note} |"


def main():
    """Print the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="fashion-mnist", help="pictures that lipscale knows, or a path")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    options = parser.parse_args()
    rows, notes = {}, {}
    for seed in options.seeds:
        data = flat(load_dataset(options.data), seed)
        for name, found in tools(data, options.epochs, seed):
            rows.setdefault(name, []).append(measured(found, data, seed))
            notes[name] = found.note
    small, large = EPSILONS
    named = "accuracy", "ECE", f"certified at {small:g}", f"at {large:g}", f"PGD leaves at {large:g}"
    print(f"| tool | {' | '.join(named)} | CPU-seconds | ms to certify | |")
    print("|---" * 9 + "|")
    for name, numbers in rows.items():
        print(row(name, numbers, notes[name]))


def flat(data, seed):
    """Some of the training images and all test images as rows."""
    data = limit(data, min(TRAIN, len(data.train)), seed=seed)
    rows = (lipscale.data.Samples(part.inputs.flatten(1), part.labels) for part in (data.train, data.test))
    train, test = rows
    order = torch.randperm(len(test.labels), generator=torch.Generator().manual_seed(seed))
    return type(data)(data.name, train, test.take(order), data.classes)


if __name__ == "__main__":
    main()
