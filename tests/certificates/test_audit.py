"""The audit finds nothing where the certificate holds, and does find a certificate that is a lie."""

import dataclasses
import json
import time

import pytest
import torch
from torch import nn

from conftest import lipscale
from lipscale import models, register_rule, set_lipschitz
from lipscale.bounds.walk import RULES
from lipscale.certificates import audit, prove
from lipscale.certificates.audits import verdict
from lipscale.certificates.slopes import climb, steepest_direction
from lipscale.data import load_dataset
from lipscale.errors import UserError
from lipscale.layers import ConvexResidual, OrthoLinear, Scale


@pytest.fixture(scope="module")
def images():
    return load_dataset("digits").test.inputs[:80]


@pytest.mark.parametrize("constant", [0.01, 128.0])
def test_a_sound_certificate_survives(images, constant):
    net = models.mlp(10, (1, 8, 8), 32)
    set_lipschitz(net, constant)
    result = audit(net, images, pairs=2000, steps=20)
    assert result.violations == 0
    assert result.attacked > 40
    assert result.pairs >= 2000
    assert 0.5 < result.tightness <= 1 + 1e-9
    assert result.slope == pytest.approx(result.tightness * result.bound)


class Doubling(nn.Module):
    def forward(self, x):
        return 2 * x


def test_a_rule_that_lies_is_found_out(images):
    """Classes flip inside the "radius", confidences leave their range, slopes exceed the "bound"."""
    net = nn.Sequential(nn.Flatten(), Doubling(), OrthoLinear(64, 10)).eval()
    register_rule(Doubling, lambda module, bound: 0.5)
    try:
        result = audit(net, images, pairs=500, steps=20)
    finally:
        del RULES[Doubling]
    assert result.violations > 500
    assert result.tightness == pytest.approx(4, rel=1e-2)


def test_a_proof_that_is_given_is_the_one_that_is_tried(images):
    net = models.mlp(10, (1, 8, 8), 32).eval()
    true = prove(net, images.shape[1:])
    lie = dataclasses.replace(true, bound=true.bound / 2, pairwise=true.pairwise / 4)
    seen = []
    knobs = {"pairs": 100, "steps": 20, "on_progress": lambda what, done, total: seen.append((what, done, total))}
    assert audit(net, images, proof=true, **knobs).violations == 0
    assert audit(net, images, proof=lie, **knobs).violations > 40
    assert ("attacks on certified samples", 80, 80) in seen
    assert seen[-1] == ("slopes between pairs of points", 100, 100)


def test_each_search_alone_finds_a_linear_networks_norm(images):
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).double().eval()
    norm = float(torch.linalg.matrix_norm(net[1].weight, 2))
    generator = torch.Generator().manual_seed(0)
    x = images[:8].double()
    assert steepest_direction(net, x, generator).max() == pytest.approx(norm, rel=1e-2)
    assert climb(net, x, generator, steps=200).max() > 0.8 * norm


@pytest.mark.slow
def test_the_command(tmp_path):
    flags = ("--limit", "300", "--epochs", "2", "--phase2-epochs", "0", "--width", "16", "--cross-fit", "false")
    lipscale("train", *flags, "--out", tmp_path / "r")
    done = lipscale("audit", tmp_path / "r", "--samples", "10", "--pairs", "300", "--steps", "10", "--json")
    result = json.loads(done.stdout)
    assert result.keys() == {"attacked", "pairs", "violations", "slope", "bound", "tightness", "complete"}
    assert result["violations"] == 0
    shown = lipscale("audit", tmp_path / "r", "--samples", "4", "--pairs", "100", "--steps", "5").stdout
    assert "held against every attack" in shown


def test_a_violation_is_exit_code_one(tmp_path, monkeypatch):
    from typer.testing import CliRunner

    from lipscale.cli import app
    from lipscale.runs import train
    from lipscale.settings import Settings

    train(Settings(limit=300, epochs=1, phase2_epochs=0, width=8, cross_fit=False, out=tmp_path / "r", device="cpu"))
    monkeypatch.setattr("lipscale.bounds.Walk.__call__", lambda self, module: 1e-6)
    monkeypatch.setattr("lipscale.certificates.audits.autoattack_installed", lambda: False)
    flags = ["--samples", "30", "--pairs", "50", "--steps", "5"]
    result = CliRunner().invoke(app, ["audit", str(tmp_path / "r"), *flags])
    assert result.exit_code == 1
    assert "BROKEN" in result.output


def test_a_constant_network_has_nothing_to_find(images):
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    nn.init.zeros_(net[1].weight)
    result = audit(net, images, pairs=20, steps=2)
    assert (result.violations, result.slope, result.tightness) == (0, 0.0, 0.0)


@pytest.mark.parametrize("offset", [0.0, 255.0, 1e5])
def test_rounding_raises_no_false_alarm(offset):
    net = nn.Sequential(nn.Flatten(), ConvexResidual(Scale(5.0)), OrthoLinear(10, 10)).eval()
    nn.init.normal_(net[1].blend)
    inputs = offset + torch.randn(40, 10)
    assert audit(net, inputs, pairs=500, steps=10).violations == 0


def test_a_proof_of_another_network_is_refused(images):
    proof = prove(models.mlp(10, (1, 8, 8), 32).eval(), images.shape[1:])
    other = models.mlp(10, (1, 8, 8), 32).eval()
    set_lipschitz(other, 100.0)
    with pytest.raises(UserError, match="another network"):
        audit(other, images, proof=proof, pairs=10, steps=2)


def test_an_audit_keeps_to_its_time_and_says_what_it_left_out(digits_net, images):
    start = time.monotonic()
    result = audit(digits_net, images, pairs=10_000_000, steps=20, seconds=2)
    assert time.monotonic() - start < 20  # a batch more or less, on a busy machine
    assert not result.complete
    assert result.pairs < 10_000_000
    assert "that there was time for" in verdict(result)
    whole = audit(digits_net, images, pairs=300, steps=2, seconds=600)
    assert whole.complete
    assert whole.attacked == audit(digits_net, images, pairs=300, steps=2).attacked
