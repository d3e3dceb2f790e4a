"""The objectives against plain loops over their formulas, deel-torchlip, and what they promise."""

import math

import deel.torchlip.functional as torchlip
import pytest
import torch
import torch.nn.functional as F
from deel.torchlip import TauCrossEntropyLoss
from fit_makers import blobs, network
from torch.utils.data import TensorDataset

import lipscale
from lipscale import losses
from lipscale.errors import UserError
from lipscale.settings import OBJECTIVES, Settings
from lipscale.training.methods import method_of

L = 3.7


@pytest.fixture
def batch():
    """Logits of 40 samples and 4 classes, some of them far ahead and some wrong, and labels."""
    generator = torch.Generator().manual_seed(0)
    z = 3 * torch.randn(40, 4, dtype=torch.float64, generator=generator)
    return z, torch.randint(0, 4, (40,), generator=generator)


def softmax_loss(z, y):
    return math.log(sum(math.exp(v) for v in z)) - z[y]


def annealed(z, y):
    u = [(v - 2.0 * (j == y)) / 0.75 for j, v in enumerate(z)]
    ce = softmax_loss(u, y)
    return 0.75 * (1 - math.exp(-ce)) ** 5 * ce


def emma(z, y, eps=0.3):
    reach = math.sqrt(2) * eps * L
    raised = [v if j == y else v + min(max((z[y] - v) / reach, 0.01), 1.0) * reach for j, v in enumerate(z)]
    return softmax_loss(raised, y)


def cll(z, y, eps=0.3, p=0.2):
    quantiles = [math.log(q / (1 - q)) for q in (1 - p / 2, p / 2)]
    sigma = 2 * eps / (quantiles[0] - quantiles[1])
    u = [-eps / sigma if j == y else ((v - z[y]) / (math.sqrt(2) * L) + eps) / sigma for j, v in enumerate(z)]
    return softmax_loss(u, y)


def certificate(z, y):
    return softmax_loss(z, y) - 0.3 * max(z[y] - max(v for j, v in enumerate(z) if j != y), 0.0)


FORMULAS = {
    annealed: lambda z, y, **w: losses.annealed_cross_entropy(z, y, offset=2.0, gamma=5.0, **w),
    emma: lambda z, y, **w: losses.emma_loss(z, y, lipschitz=L, radius=0.3, **w),
    cll: lambda z, y, **w: losses.cll_loss(z, y, lipschitz=L, radius=0.3, slack=0.2, **w),
    certificate: lambda z, y, **w: losses.certificate_loss(z, y, gamma=0.3, **w),
}


@pytest.mark.parametrize("weights", [None, (1.0, 2.0, 0.0, 5.0)])
@pytest.mark.parametrize("by_hand", FORMULAS, ids=lambda formula: formula.__name__)
def test_each_is_its_formula_sample_by_sample(batch, by_hand, weights):
    z, y = batch
    heavy = None if weights is None else torch.tensor(weights, dtype=z.dtype)
    samples = [
        (1.0 if heavy is None else weights[k], by_hand(row.tolist(), k)) for row, k in zip(z, y.tolist(), strict=True)
    ]
    expected = sum(w * loss for w, loss in samples) / sum(w for w, _ in samples)
    assert float(FORMULAS[by_hand](z, y, weights=heavy)) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("tau", [0.3, 1.0, 20.0])
def test_tau_is_torchlips(batch, tau):
    z, y = batch
    theirs = TauCrossEntropyLoss(tau)(z, y)
    torch.testing.assert_close(losses.tau_cross_entropy(z, y, tau=tau), theirs)


@pytest.mark.parametrize("alpha", [0.2, 0.9])
@pytest.mark.parametrize("present", [4, 2])
def test_hkr_is_torchlips_of_the_unit_network(batch, alpha, present):
    z, y = batch
    y = y % present  # classes that a batch lacks
    theirs = torchlip.hkr_multiclass_loss(z / L, F.one_hot(y, 4).to(z), alpha, math.sqrt(2) * 0.3).mean()
    torch.testing.assert_close(losses.hkr_loss(z, y, lipschitz=L, radius=0.3, alpha=alpha), theirs)


@pytest.mark.parametrize("asked", [{"objective": "hkr"}, {"objective": "hkr", "margin": 0.1}, {"objective": "cll"}])
def test_hkr_and_cll_see_no_scale(batch, asked):
    """L <- L / T* then changes the probabilities alone: one step at the end is all that the feedback does."""
    z, y = batch
    at = [method_of(Settings(**asked), constant=lambda k=k: k * L).loss(k * z, y) for k in (1.0, 0.25)]
    torch.testing.assert_close(*at)


@pytest.mark.parametrize("name", ["offset", "emma"])
def test_a_radius_stays_the_same_radius_while_l_moves(batch, name):
    """Doubling L and the logits doubles what is asked for: the loss of the samples that just have it stays log 2."""
    for constant in (1.0, 8.0):
        z = torch.tensor([[math.sqrt(2) * 0.25 * constant, 0.0]])  # certified at exactly 0.25
        loss = method_of(Settings(objective=name, margin=0.25), constant=lambda c=constant: c).loss(
            z, torch.tensor([0])
        )
        assert float(loss) == pytest.approx(math.log(2))


@pytest.mark.parametrize("name", OBJECTIVES)
def test_every_gradient_is_finite_and_right(batch, name):
    z, y = batch
    loss = method_of(Settings(objective=name), constant=lambda: L).loss
    far = torch.zeros(4, 4).index_fill_(1, torch.tensor([2]), 1e4).requires_grad_()  # certain, right and wrong
    loss(far, torch.arange(4)).backward()
    assert far.grad.isfinite().all()
    for labels in (y[:6], torch.zeros(6, dtype=torch.long)):  # and a batch of one class
        rows = z[:6].clone().requires_grad_()
        if name != "emma":  # whose attacks are constants to the gradient
            assert torch.autograd.gradcheck(lambda rows, labels=labels: loss(rows, labels), rows)
        loss(rows, labels).backward()
        assert rows.grad.isfinite().all()


@pytest.mark.parametrize("name", OBJECTIVES)
def test_list_calibrates_whatever_it_is_trained_for(name):
    """Blobs that overlap, so that T* is known well."""
    rows, labels = blobs((700, 700, 700))
    fitted = lipscale.fit(network(), TensorDataset(rows, labels), epochs=10, objective=name, progress=False)
    fresh, truth = blobs((1000, 1000, 1000), seed=1)
    with torch.no_grad():
        logits = fitted.net(fresh)
    assert (logits.argmax(1) == truth).float().mean() > 0.8
    assert lipscale.fit_temperature(logits, truth) == pytest.approx(1.0, abs=0.2)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"objective": "hinge"}, "hkr"),
        ({"objective": "tau", "offset": 2.0}, "offset: means nothing to objective tau"),
        ({"tau": 2.0}, "tau: means nothing to objective offset: leave it out, or use objective tau"),
        ({"objective": "cll", "slack": 1.0}, "slack"),
        ({"objective": "hkr", "method": "standard"}, "objective: means nothing to method standard"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(values, said):
    with pytest.raises(UserError, match=r"^[^\n]*$") as error:
        Settings.checked(values)
    assert said in str(error.value)
