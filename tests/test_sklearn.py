"""The classifier for scikit-learn: its conventions, by scikit-learn's own checks, and what its radii promise."""

import pickle

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.calibration import CalibrationDisplay
from sklearn.datasets import load_breast_cancer, load_iris
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV, cross_val_score, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from lipscale.sklearn import LipschitzClassifier


@parametrize_with_checks([LipschitzClassifier()])
def test_scikit_learns_own_checks(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def cancer():
    X, y = load_breast_cancer(return_X_y=True, as_frame=True)
    return train_test_split(X, y, stratify=y, random_state=0)


@pytest.fixture(scope="module")
def fitted(cancer):
    X, _, y, _ = cancer
    return LipschitzClassifier(epochs=20, depth=1, width=16, random_state=0).fit(X, y)


def table(rows=300):
    """Numbers with gaps and a category; the label follows both."""
    rng = np.random.default_rng(0)
    amount, kind = rng.normal(50, 10, rows), rng.choice(["red", "green", "blue"], rows)
    y = np.where(amount + 15 * (kind == "red") > 55, "yes", "no")
    amount[::17] = np.nan
    return pd.DataFrame({"amount": amount, "kind": kind}), y


@pytest.mark.parametrize("standardize", [True, False])
def test_no_row_moved_within_its_radius_changes_its_answer(standardize):
    """Along the straight line to a row of the other class, the shortest way that a table shows, and at random."""
    X, y = load_iris(return_X_y=True)
    X, y = X[y > 0] * [1, 10, 0.1, 1], y[y > 0]  # columns of other units
    model = LipschitzClassifier(epochs=20, depth=1, width=16, standardize=standardize, random_state=0).fit(X, y)
    answers, radii = model.predict(X), model.certified_radius(X)
    assert (radii > 0).all()
    rng = np.random.default_rng(0)
    for other in range(len(X)):
        for direction in (X[other] - X, rng.normal(size=X.shape) * X.std(0)):
            length = np.linalg.norm(direction, axis=1, keepdims=True)
            moved = X + 0.999 * radii[:, None] * direction / np.where(length > 0, length, 1)
            assert (model.predict(moved) == answers).all()


def test_probabilities_stay_within_their_intervals(fitted, cancer):
    _, X, _, _ = cancer
    values, epsilon = X.to_numpy(), 0.001
    ends = fitted.predict_interval(X, epsilon)
    answers = fitted.predict_proba(X).argmax(1)
    rng = np.random.default_rng(0)
    for _ in range(20):
        step = rng.normal(size=values.shape)
        moved = values + epsilon * step / np.linalg.norm(step, axis=1, keepdims=True)
        found = fitted.predict_proba(pd.DataFrame(moved, columns=X.columns))[np.arange(len(X)), answers]
        assert ((ends[:, 0] <= found) & (found <= ends[:, 1])).all()
    assert (np.diff(fitted.predict_interval(X, 0.01)) > np.diff(ends)).all()


def test_class_weights_are_odds(fitted, cancer):
    """Bayes: where a class counts w times as much, its odds are w times as high."""
    X, tested, y, _ = cancer
    weighted = clone(fitted).set_params(class_weight={0: 3.0, 1: 0.5}).fit(X, y)
    odds, before = (np.subtract(*np.log(model.predict_proba(tested)).T) for model in (weighted, fitted))
    assert odds - before == pytest.approx(np.log(6), abs=1e-4)
    for weight in (0.0, np.nan, np.inf):
        with pytest.raises(ValueError, match="positive, finite weight"):
            clone(fitted).set_params(class_weight={0: weight, 1: 1.0}).fit(X, y)
    for epsilon in (-1.0, np.nan, np.inf):
        with pytest.raises(ValueError, match=rf"expected epsilon >= 0, got {epsilon}"):
            fitted.predict_interval(tested, epsilon)


def test_categories_gaps_and_names():
    X, y = table()
    model = LipschitzClassifier(epochs=20, random_state=0).fit(X, y)
    assert list(model.feature_names_in_) == ["amount", "kind"]
    assert list(model.classes_) == ["no", "yes"]
    assert model.score(X, y) > 0.85
    assert (model.certified_radius(X) > 0).any()
    assert (model.predict(X.assign(kind="never seen")) == model.predict(X.assign(kind=None))).all()
    with pytest.raises(ValueError, match="feature names"):
        model.predict(X[["kind", "amount"]])
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        model.fit(X, y[:-1])


def test_a_class_of_one_sample_leaves_nothing_to_calibrate_with():
    X, y = load_iris(return_X_y=True)
    with pytest.warns(UserWarning, match="nothing is claimed of the probabilities"):
        model = LipschitzClassifier(epochs=2).fit(X[49:100], y[49:100])
    assert not model.calibrated_
    assert model.lipschitz_ == 1.0
    with pytest.warns(UserWarning, match="4 samples, or a class of one sample, leave none"):  # fewer than take turns
        few = LipschitzClassifier(epochs=2).fit(X[48:52], y[48:52])
    assert not few.calibrated_


def test_it_joins_pipelines_searches_and_pickles(fitted, cancer):
    X, tested, y, labels = cancer
    again = pickle.loads(pickle.dumps(fitted))
    assert (again.predict_proba(tested) == fitted.predict_proba(tested)).all()
    assert (again.certified_radius(tested) == fitted.certified_radius(tested)).all()
    small = LipschitzClassifier(epochs=4, depth=0, random_state=0)
    search = GridSearchCV(make_pipeline(StandardScaler(), small), {"lipschitzclassifier__offset": [0.0, 1.0]}, cv=2)
    assert search.fit(X, y).best_score_ > 0.85
    assert cross_val_score(small, X, y, cv=2, scoring="neg_log_loss").mean() > -0.4
    shown = CalibrationDisplay.from_estimator(fitted, tested, labels)
    assert ((shown.prob_true >= 0) & (shown.prob_true <= 1)).all()


def test_it_is_calibrated_where_the_default_is_trained(cancer):
    X, tested, y, labels = cancer
    model = LipschitzClassifier(random_state=0).fit(X, y)
    assert log_loss(labels, model.predict_proba(tested)) < 0.12
