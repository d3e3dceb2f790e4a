"""What suits a table: as narrow a network as it allows, none of its layers hidden where a linear model is as good."""

import math
import warnings

from lipscale.data import Samples
from lipscale.training.hardware import one_thread

LEAST_WIDTH, MOST_WIDTH = 64, 256
HIDDEN = 2  # layers; a third changed nothing (TABLES.md)
STEPS, LEAST_BATCH, MOST_BATCH = 24, 32, 4096  # an epoch, more or less: rows cost little beside a step
FOLDS = 5
FEW = 10_000  # rows times classes, up to which a linear model may be as good, and trying it is cheap
BINS = 32  # of the trees that try: a quarter of the time of 255


def table_batch(rows: int) -> int:
    """A batch for a table of so many rows."""
    some = 2 ** round(math.log2(max(1, rows) / STEPS))
    return max(1, min(max(LEAST_BATCH, some), MOST_BATCH, rows))


def table_width(features: int) -> int:
    """As many units as features, so that the first layer loses none, within limits."""
    return int(min(max(LEAST_WIDTH, 2 ** math.ceil(math.log2(features))), MOST_WIDTH))


def table_depth(train: Samples, classes: int) -> int:
    """No hidden layer where the rows are few and trees find nothing that a linear model misses."""
    rows, features = train.inputs.shape
    if rows * classes > FEW:
        return HIDDEN
    # with as many features as rows a linear model can tell any labels apart: there is nothing to miss
    return 0 if features >= rows or _is_linear(train) else HIDDEN


def _is_linear(train: Samples) -> bool:
    """Whether the log-loss of logistic regression is below that of gradient boosting, cross-validated."""
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import cross_val_score

    inputs, labels = train.inputs[:].cpu().numpy(), train.labels.cpu().numpy()
    folds = min(FOLDS, int(train.labels.long().bincount().min()))
    if folds < 2:  # a class of one row cannot be in both parts
        return True

    def score(model: object) -> float:
        # one that has not converged is judged by what it does
        with one_thread(), warnings.catch_warnings(action="ignore"):
            return float(cross_val_score(model, inputs, labels, cv=folds, scoring="neg_log_loss").mean())

    return score(LogisticRegression()) >= score(HistGradientBoostingClassifier(max_bins=BINS, random_state=0))
