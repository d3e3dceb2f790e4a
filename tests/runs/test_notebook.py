"""A run in a notebook: its verdict, five numbers and a diagram whose bars are the accuracies, and no dump."""

import re
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
import torch

from lipscale.runs import train
from lipscale.runs.notebook import SIDE, diagram
from lipscale.settings import Settings


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("notebook") / "<b>run"
    return train(Settings(limit=300, epochs=2, width=16, device="cpu", out=out), progress=False)


def test_a_run_shows_itself_and_its_diagram(run):
    shown = run._repr_html_()
    root = ElementTree.fromstring(shown)  # whole, and nothing of a name is markup
    assert [cell.text for cell in root.iter("td")][::3] == [
        *("accuracy", "calibration error", "certified accuracy at 0.1412", "Lipschitz constant L", "training time")
    ]
    assert "&lt;b&gt;run" in shown
    assert f"{100 * run.metrics.accuracy:.1f} %" in shown
    assert root.find(".//svg/rect") is not None
    assert len(repr(run)) < 300
    assert "certified" in repr(run)


def test_without_its_predictions_it_still_shows_its_numbers(run):
    (run.folder / "predictions.safetensors").rename(run.folder / "gone")
    shown = run._repr_html_()
    (run.folder / "gone").rename(run.folder / "predictions.safetensors")
    assert "<svg" not in shown
    assert "accuracy" in shown


def test_the_bars_are_the_accuracies_of_the_bins():
    logits, labels = 2 * torch.randn(2000, 3), torch.randint(0, 3, (2000,))
    confidence, answer = (part.numpy() for part in logits.softmax(1).max(1))
    right = answer == labels.numpy()
    bins = np.ceil(15 * confidence).astype(int) - 1
    expected = [right[bins == k].mean() for k in range(15) if (bins == k).any()]
    heights = [float(h) / SIDE for h in re.findall(r'height="([\d.]+)" fill', diagram(logits, labels))]
    assert heights == pytest.approx(expected, abs=0.5 / SIDE)
