"""Tables: `lipscale train` as it comes, against what people use, by log-loss, accuracy and CPU-seconds.

OMP_NUM_THREADS=1 python -m benchmarks.tables                       # some minutes; the table of docs/TABLES.md
OMP_NUM_THREADS=1 python -m benchmarks.tables wine --seeds 0 1 2    # other splits than those

Breast cancer and wine are scikit-learn's. The other two are made up, like the census table "adult" and like card fraud
with 1 % of positives; a seed draws their categories' effects, too, so that no two seeds are one task. CPU-seconds are
those of fitting; of lipscale, those of all that `train` does, from reading the file to metrics and proofs. A split of
the two small sets tests on 36 or 114 rows, of which one may be a tenth of the log-loss: they get more splits.
"""

import argparse
import csv
import logging
import tempfile
import time
from pathlib import Path

import numpy as np
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_breast_cancer, load_wine
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import lipscale

TEST_ROWS = 20_000  # of made-up tables: as many as it takes to tell 1 %
FIRST_SEED, SPLITS, SPLITS_OF_SMALL = 300, 5, 25  # seeds that chose nothing


def adult_like(rng, rows):
    """Age, education, hours, gains and a weight; five categories; a hump, a threshold and interactions."""
    age = np.clip(rng.gamma(9, 4.3, rows), 17, 90)
    education, hours = (
        np.clip(rng.normal(10, 2.6, rows).round(), 1, 16),
        np.clip(rng.normal(40, 12, rows).round(), 1, 99),
    )
    gain = np.where(rng.random(rows) < 0.085, np.exp(rng.normal(8.3, 1.1, rows)), 0.0)
    _, job, family, sex, _ = categories = [draw(rng, count, rows) for count in (8, 14, 6, 2, 10)]
    z = sum(rng.normal(0, size, 14)[c] for c, size in zip(categories, (0.3, 0.7, 1.0, 0.3, 0.2), strict=True))
    z = z + rng.normal(0, 0.6, (14, 6))[job, family] + 0.35 * (education - 10) - ((age - 48) / 16) ** 2
    z = z + 0.03 * (hours - 40) + 0.007 * (education - 10) * (hours - 40) + 0.8 * (sex == 1) * (age > 35)
    z = z + 2.5 * (gain > 5000) - 0.5 * ((gain > 0) & (gain < 3000))
    numbers = np.column_stack([age, education, hours, gain, np.exp(rng.normal(12, 0.5, rows))])
    return numbers, np.column_stack(categories), drawn(rng, 1.15 * z, 0.3)


def fraud_like(rng, rows):
    """Amounts, distances, hours and counts with long tails; three categories; 1 % of positives."""
    amount, distance = np.exp(rng.normal(3.5, 1.3, rows)), np.exp(rng.normal(1.5, 1.5, rows))
    hour, recent, age = rng.integers(0, 24, rows), rng.poisson(2.5, rows), rng.gamma(1.5, 800, rows)
    ratio = amount / np.exp(rng.normal(3.5, 0.8, rows))
    _, _, abroad = categories = [draw(rng, count, rows) for count in (12, 3, 2)]
    z = sum(rng.normal(0, size, 12)[c] for c, size in zip(categories, (0.7, 0.5, 0.5), strict=True))
    z = z + 0.7 * np.log(ratio) + 0.35 * np.log(distance) + 1.3 * ((hour < 5) | (hour > 22)) + 0.25 * recent
    z = z - 0.6 * np.log1p(age / 500) + 1.5 * (distance > 20) * (abroad == 1) + (recent > 5) * (amount < 20)
    numbers = np.column_stack([amount, distance, hour, recent, age, ratio])
    return numbers, np.column_stack(categories), drawn(rng, 1.1 * z, 0.01)


def draw(rng, count, rows):
    """A column of categories, some common and some rare."""
    return rng.choice(count, rows, p=rng.dirichlet(2 * np.ones(count)))


def drawn(rng, logits, share):
    """Labels from logits that are shifted until so large a share is positive."""
    low, high = -50.0, 50.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if (1 / (1 + np.exp(-logits - middle))).mean() > share else (middle, high)
    return (rng.random(len(logits)) < 1 / (1 + np.exp(-logits - low))).astype(int)


def made_up(make, rows, offset):
    """A maker of the training and the test part for a seed."""

    def split(seed):
        numbers, categories, labels = make(np.random.default_rng(seed + offset), rows + TEST_ROWS)
        return [part[:rows] for part in (numbers, categories, labels)], [
            part[rows:] for part in (numbers, categories, labels)
        ]

    return split


def of_scikit_learn(load):
    """Likewise, four fifths and one fifth of a small set."""

    def split(seed):
        found = load()
        parts = train_test_split(found.data, found.target, test_size=0.2, stratify=found.target, random_state=seed)
        train, test, labels, test_labels = parts
        none = [np.zeros((len(part), 0), int) for part in (train, test)]
        return [train, none[0], labels], [test, none[1], test_labels]

    return split


TABLES = {
    "breast cancer": of_scikit_learn(load_breast_cancer),
    "wine": of_scikit_learn(load_wine),
    "adult-like, 12,000": made_up(adult_like, 12_000, 0),
    "adult-like, 24,000": made_up(adult_like, 24_000, 10_000),
    "fraud-like, 12,000": made_up(fraud_like, 12_000, 20_000),
    "fraud-like, 24,000": made_up(fraud_like, 24_000, 30_000),
}


def peers(categorical):
    """Logistic regression and gradient boosting, with and without calibration; whether categories are spread out."""
    linear = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    trees = HistGradientBoostingClassifier(categorical_features=categorical or None, random_state=0)
    return {
        "logistic regression": (linear, True),
        "logistic regression, calibrated": (CalibratedClassifierCV(linear), True),
        "gradient boosting": (trees, False),
        "gradient boosting, calibrated": (CalibratedClassifierCV(trees), False),
    }


def spread(numbers, categories):
    """Categories as blocks of zeros and a one."""
    return np.hstack([numbers, *(np.eye(14)[column] for column in categories.T)])


def measured_peers(train, test):
    """Log-loss, accuracy and CPU-seconds of each of them."""
    columns = range(train[0].shape[1], train[0].shape[1] + train[1].shape[1])
    found = {}
    for name, (model, is_linear) in peers(list(columns)).items():
        inputs = [spread(*part[:2]) if is_linear else np.hstack(part[:2]) for part in (train, test)]
        start = time.process_time()
        model.fit(inputs[0], train[2])
        seconds = time.process_time() - start
        answers = model.predict_proba(inputs[1])
        found[name] = log_loss(test[2], answers), float((answers.argmax(1) == test[2]).mean()), seconds
    return found


def measured_lipscale(train, test, seed, folder):
    """Likewise of `lipscale train`, and its certified accuracy at 0.25."""
    for name, part in (("train", train), ("test", test)):
        write(folder / f"{name}.csv", part)
    start = time.process_time()
    run = lipscale.train(
        lipscale.Settings(
            data=str(folder / "train.csv"),
            test_data=folder / "test.csv",
            label="label",
            seed=seed,
            device="cpu",
            out=folder / "run",
        ),
        progress=False,
    )
    seconds = time.process_time() - start
    return run.metrics.nll, run.metrics.accuracy, seconds, run.metrics.certified_accuracy["0.25"]


def write(path, part):
    """The table as a file."""
    numbers, categories, labels = part
    names = [f"number{i}" for i in range(numbers.shape[1])] + [f"category{i}" for i in range(categories.shape[1])]
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow([*names, "label"])
        for values, chosen, label in zip(numbers, categories, labels, strict=True):
            rows.writerow([*values.tolist(), *(f"k{c}" for c in chosen), f"class{label}"])


def compare(name, seeds):
    """The rows of one table's comparison, means over the seeds, best log-loss of a peer first."""
    ours, others = [], {}
    for seed in seeds:
        train, test = TABLES[name](seed)
        with tempfile.TemporaryDirectory() as folder:
            ours.append(measured_lipscale(train, test, seed, Path(folder)))
        for peer, found in measured_peers(train, test).items():
            others.setdefault(peer, []).append(found)
    loss, accuracy, seconds, certified = np.mean(ours, 0)
    means = {peer: np.mean(found, 0) for peer, found in others.items()}
    best = min(means, key=lambda peer: means[peer][0])
    above = (np.array(ours)[:, 0] - np.array(others[best])[:, 0]) / means[best][0]
    error = above.std(ddof=1) / len(above) ** 0.5 if len(above) > 1 else np.nan
    slowest = means["gradient boosting, calibrated"][2]
    told = (
        f"{loss:.4f} ({above.mean():+.1%} ± {error:.1%}) | {accuracy:.4f} | {seconds:.2f} ({seconds / slowest:.1f} x)"
    )
    yield f"| {name} | **lipscale** | {told} | {certified:.3f} |"
    for peer, (loss, accuracy, seconds) in sorted(means.items(), key=lambda item: item[1][0]):
        yield f"| | {peer} | {loss:.4f} | {accuracy:.4f} | {seconds:.3f} | |"


def main():
    """Print the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", help=f"of {', '.join(TABLES)}; default all")
    parser.add_argument("--seeds", type=int, nargs="+", help="of splits and runs; default those of docs/TABLES.md")
    chosen = parser.parse_args()
    logging.getLogger("lipscale").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder:  # what is imported once is nobody's time
        measured_lipscale(*of_scikit_learn(load_wine)(0), 0, Path(folder))
    print("| table | model | log-loss (above the best other, ± error) | accuracy | CPU-seconds | certified at 0.25 |")
    print("|---|---|---|---|---|---|")
    for name in chosen.tables or TABLES:
        splits = SPLITS if "like" in name else SPLITS_OF_SMALL
        for row in compare(name, chosen.seeds or range(FIRST_SEED, FIRST_SEED + splits)):
            print(row, flush=True)


if __name__ == "__main__":
    main()
