"""Certified worst cases: against brute force over what samples can become, real changes, and plain metrics."""

import itertools
import math

import pytest
import torch

from lipscale import certify, models, set_lipschitz
from lipscale.certificates.affine import Affine
from lipscale.certificates.certificate import Certificate
from lipscale.certificates.reach import Reach
from lipscale.certificates.worst_case import THRESHOLDS, worst_case, worst_risks, worst_selective
from lipscale.certificates.worst_ece import worst_ece
from lipscale.errors import UserError
from lipscale.metrics import aurc, brier, ece, nll, selective_risk

EPSILONS = (0.0, 0.003, 0.03, 0.1, 0.4, 2.0)


def problem(classes, n, *, seed, lipschitz=6.0):
    """A small random network, inputs, and labels that it is calibrated for."""
    torch.manual_seed(seed)
    net = models.mlp(classes, 5, 8).eval()
    set_lipschitz(net, lipschitz)
    x = torch.randn(n, 5)
    with torch.no_grad():
        return net, x, torch.distributions.Categorical(logits=net(x)).sample()


def plain(logits, labels):
    """The metrics that have a worst case, by its names."""
    return {
        "nll": nll(logits, labels),
        "brier": brier(logits, labels),
        "ece": ece(logits, labels, min(15, len(labels))),
        "aurc": aurc(logits, labels),
        "selective_risk": selective_risk(logits, labels),
    }


def random_reach(n, generator):
    """What answers can become, of all kinds: certainly right, certainly wrong, both."""
    ends = torch.rand(n, 3, generator=generator, dtype=torch.float64).sort(1).values
    ends[::3, 1] = ends[::3, 0] + 0.01  # some have no way to go
    kind = torch.randint(3, (n,), generator=generator)
    order = torch.rand(n, generator=generator) < 0.5
    right, wrong = torch.where(order, ends[:, 1], ends[:, 2]), torch.where(order, ends[:, 2], ends[:, 1])
    return Reach(ends[:, 0], right, wrong, kind != 0, kind != 1)


def becomes(reach, bins, *, inside=1e-9):
    """For each sample all (confidence, correct) that can be extreme: its ends, and the ends of the bins between."""
    edges = [m / bins for m in range(1, bins)]
    for i in range(len(reach.low)):
        options = []
        for possible, high, correct in (
            (reach.can_be_right[i], reach.right_high[i], 1.0),
            (reach.can_be_wrong[i], reach.wrong_high[i], 0.0),
        ):
            low, high = float(reach.low[i]), float(high)
            if possible:
                between = [c for edge in edges for c in (edge, edge + inside) if low <= c <= high]
                options += [(c, correct) for c in (low, high, *between)]
        yield options


def ece_of(points, bins):
    """The definition, sample by sample."""
    gaps = dict.fromkeys(range(bins), 0.0)
    for confidence, correct in points:
        gaps[next(m for m in range(bins) if confidence <= (m + 1) / bins + 1e-15)] += confidence - correct
    return sum(map(abs, gaps.values())) / len(points)


def risks_of(points):
    """risk(1), ..., risk(N) by the definition, errors before right answers of the same confidence."""
    ordered = sorted(points, key=lambda point: (-point[0], point[1]))
    return [sum(1 - correct for _, correct in ordered[:n]) / n for n in range(1, len(ordered) + 1)]


class TestBruteForce:
    @pytest.mark.parametrize("seed", range(12))
    def test_the_ece_is_the_largest_of_all_choices(self, seed):
        bins, generator = 4, torch.Generator().manual_seed(seed)
        reach = random_reach(4, generator)
        found = max(ece_of(points, bins) for points in itertools.product(*becomes(reach, bins)))
        assert worst_ece(reach, bins) == pytest.approx(found, abs=1e-7)  # a bin's open end is a limit

    @pytest.mark.parametrize("seed", range(12))
    def test_the_risks_are_the_largest_of_all_choices(self, seed):
        reach = random_reach(5, torch.Generator().manual_seed(100 + seed))
        choices = [risks_of(points) for points in itertools.product(*becomes(reach, 1))]
        worst = worst_risks(reach).tolist()
        assert worst == pytest.approx([max(column) for column in zip(*choices, strict=True)])
        assert sum(worst) == pytest.approx(max(map(sum, choices)))  # one choice is the worst of all n at once

    @pytest.mark.parametrize("threshold", [0.3, 0.6])
    def test_the_selective_accuracy_is_the_least_of_all_choices(self, threshold):
        for seed in range(12):
            reach = random_reach(5, torch.Generator().manual_seed(200 + seed))
            shares, coverages = [], []
            for points in itertools.product(*becomes(reach, 1)):
                given = [correct for confidence, correct in points if confidence >= threshold]
                shares += [sum(given) / len(given)] if given else []
                coverages.append(len(given) / len(points))
            found = worst_selective(reach, threshold)
            # none: perhaps no answer is given, and those that are cannot be wrong
            assert min(shares, default=1.0) == pytest.approx(1.0 if found.accuracy is None else found.accuracy)
            assert found.coverage == pytest.approx(min(coverages))

    def test_many_samples_and_bins_equal_a_plain_search_over_signs(self):
        bins, reach = 6, random_reach(40, torch.Generator().manual_seed(7))
        options = list(becomes(reach, bins))

        def total(signs):
            def worth(confidence, correct):
                m = next(m for m in range(bins) if confidence <= (m + 1) / bins + 1e-15)
                return signs[m] * (confidence - correct)

            return sum(max(worth(*point) for point in choices) for choices in options)

        found = max(total(signs) for signs in itertools.product((-1, 1), repeat=bins)) / len(options)
        assert worst_ece(reach, bins) == pytest.approx(found, abs=1e-7)


class TestNetworks:
    @pytest.mark.parametrize("classes", [2, 5])
    def test_at_zero_it_is_the_plain_metric(self, classes):
        net, x, y = problem(classes, 400, seed=classes)
        certificate = certify(net, x)
        found = vars(worst_case(certificate, y, 0.0))
        for name, value in plain(certificate.logits, y).items():
            assert found[name] == pytest.approx(value, abs=1e-8), name
            assert found[name] >= value - 1e-15, name

    def test_it_grows_with_epsilon(self):
        net, x, y = problem(5, 300, seed=1)
        certificate = certify(net, x)
        rows = [worst_case(certificate, y, eps) for eps in EPSILONS]
        for name in plain(certificate.logits, y):
            values = [getattr(row, name) for row in rows]
            assert values == sorted(values), name
            assert values[-1] > values[0] + 0.1, name
        for t in THRESHOLDS:
            coverages = [row.selective[f"{t:g}"].coverage for row in rows]
            assert coverages == sorted(coverages, reverse=True)

    @pytest.mark.parametrize("classes", [2, 3, 6])
    def test_no_change_of_the_inputs_is_worse(self, classes):
        """Random changes, and those along the gradient of each sample's own loss, up or down at random."""
        net, x, y = problem(classes, 200, seed=classes)
        certificate = certify(net, x)
        leaf = x.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(torch.nn.functional.cross_entropy(net(leaf), y, reduction="sum"), leaf)
        for eps in EPSILONS[1:]:
            bound = worst_case(certificate, y, eps)
            for seed in range(20):
                generator = torch.Generator().manual_seed(seed)
                noise = torch.randn(x.shape, generator=generator)
                steps = torch.where(torch.rand(len(x), 1, generator=generator) < 0.5, gradient, -gradient)
                direction = (noise, steps, gradient)[seed % 3]
                moved = x + 0.99999 * eps * direction / direction.norm(dim=1, keepdim=True)
                logits = certify(net, moved).logits
                for name, value in plain(logits, y).items():
                    assert value <= getattr(bound, name), (name, eps)
                p = logits.softmax(1)
                right = p.argmax(1) == y
                for t in THRESHOLDS:
                    given, proven = p.amax(1) >= t, bound.selective[f"{t:g}"]
                    assert float(given.double().mean()) >= proven.coverage
                    if given.any():
                        assert float(right[given].double().mean()) >= proven.accuracy

    def test_two_classes_reach_the_nll_bound(self):
        """Along the difference of the head's rows of a linear network the loss grows as fast as the bound says."""
        net = torch.nn.Sequential(torch.nn.Linear(4, 2)).double()
        x, y = torch.randn(50, 4, dtype=torch.float64), torch.randint(2, (50,))
        certificate, w = certify(net, x, even_unconstrained=True), net[0].weight.detach()
        away = (w[1 - y] - w[y]) / (w[1 - y] - w[y]).norm(dim=1, keepdim=True)
        attacked = net(x + 0.3 * away)
        assert certificate.nll(y, 0.3) == pytest.approx(nll(attacked, y), rel=1e-8)
        assert certificate.brier(y, 0.3) == pytest.approx(brier(attacked, y), rel=1e-8)


class TestCorners:
    def by_hand(self, *rows, bound=1.0):
        logits = torch.tensor(rows, dtype=torch.float64)
        pairwise = math.sqrt(2) * bound * (1 - torch.eye(logits.shape[1], dtype=torch.float64))
        return Certificate(bound, pairwise, logits, torch.zeros(len(rows)).double(), Affine(0.0, 0.0))

    def test_the_nll_by_hand_and_far_beyond_what_exponentials_hold(self):
        found = self.by_hand([2.0, 0.0, -1.0])
        moved = math.sqrt(2) * 0.5
        assert found.nll(torch.tensor([0]), 0.5) == pytest.approx(
            math.log(1 + math.exp(-2 + moved) + math.exp(-3 + moved))
        )
        assert self.by_hand([2000.0, 0.0]).nll(torch.tensor([1]), 1000.0) == pytest.approx(2000 + 1000 * math.sqrt(2))

    def test_every_class_has_the_range_that_confidence_gives_it(self):
        net, x, _ = problem(4, 30, seed=0)
        certificate = certify(net, x)
        lower, upper = certificate.probabilities(0.2)
        for k in range(4):
            low, high = certificate.confidence(0.2, torch.full((30,), k))
            assert torch.equal(lower[:, k], low)
            assert torch.equal(upper[:, k], high)

    def test_the_brier_score_is_never_above_the_cruder_bound(self):
        net, x, y = problem(6, 200, seed=3)
        certificate = certify(net, x)
        for eps in EPSILONS:
            lower, _ = certificate.confidence(eps, y)
            assert certificate.brier(y, eps) <= float((2 * (1 - lower).square()).mean()) + 1e-9

    def test_too_many_bins_and_an_impossible_epsilon_are_refused(self):
        certificate, y = self.by_hand([1.0, 0.0], [0.0, 1.0]), torch.tensor([0, 0])
        with pytest.raises(UserError, match="1 to 16 bins"):
            worst_case(certificate, y, 0.1, bins=40)
        with pytest.raises(UserError, match="epsilon >= 0, got -0.1"):
            worst_case(certificate, y, -0.1)

    def test_where_nothing_is_proven_all_is_lost(self):
        certificate, y = self.by_hand([1.0, 0.0], [0.0, 1.0], bound=math.inf), torch.tensor([0, 1])
        certificate.pairwise.fill_diagonal_(0.0)
        found = worst_case(certificate, y, 0.1)
        assert (found.nll, found.brier, found.ece, found.aurc) == (math.inf, 2.0, 1.0, 1.0)
