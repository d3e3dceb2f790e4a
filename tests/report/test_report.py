"""The report: what it says, what it leaves out and says so, and that people can open it."""

import json
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch

from browsing import is_dark, move, visit
from conftest import lipscale
from experiment_makers import made_up_metrics
from lipscale.certificates.robustness import Attack
from lipscale.errors import UserError
from lipscale.report import write_report
from lipscale.report.figures import dynamics, relaxation_end
from lipscale.report.record import Answers, read_records
from lipscale.report.tables import side_by_side
from lipscale.report.verdict import verdict
from lipscale.runs import attack_run, train
from lipscale.settings import Settings


def quick(folder, **changes):
    knobs = {"limit": 300, "epochs": 6, "phase2_epochs": 2, "width": 16, "device": "cpu", "out": folder}
    knobs |= {"calibration_fraction": 0.1, **changes}
    return train(Settings(**knobs))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A short LiST run with an attack, and one at a fixed L without."""
    base = tmp_path_factory.mktemp("runs")
    run = quick(base / "list")
    attack_run(run, Attack(steps=5, restarts=1), samples=30)
    quick(base / "fixed", method="fixed", lipschitz=2.0)
    return base


@pytest.fixture
def runs(finished, tmp_path):
    shutil.copytree(finished, tmp_path / "runs")
    return tmp_path / "runs"


class Page(HTMLParser):
    """What a reader of the page gets."""

    def __init__(self, path: Path):
        super().__init__()
        self.text, self.links, self.labels, self.pictures = "", [], [], []
        self.words, self.inside, self.hidden = {}, "", 0
        self.feed(path.read_text())

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.hidden += tag in ("script", "style")
        self.links += [found[key] for key in ("src", "href") if key in found]
        self.inside = found.get("id", "") if tag == "figcaption" else self.inside
        if found.get("role") == "img":
            self.labels.append(found["aria-labelledby"])
        if tag == "img":
            self.pictures.append(found)

    def handle_endtag(self, tag):
        self.inside = "" if tag == "figcaption" else self.inside
        self.hidden -= tag in ("script", "style")

    def handle_data(self, data):
        if self.inside:
            self.words[self.inside] = self.words.get(self.inside, "") + data
        self.text += "" if self.hidden else data


def test_the_page_is_whole_by_itself_small_and_described(runs):
    path = write_report([runs / "list"])
    assert path == runs / "list" / "report.html"
    assert path.stat().st_size < 5_000_000
    page = Page(path)
    assert all(link.startswith(("data:", "#")) for link in page.links)  # nothing is fetched
    assert "url(http" not in path.read_text()
    assert len(page.labels) == 4  # every figure has words
    assert all(len(page.words[label]) > 40 for label in page.labels)
    assert len(page.pictures) == 16
    assert all(picture["alt"] for picture in page.pictures)
    for words in ("Verdict", "certified accuracy at 0.25", "relaxes to", "Hardest", "calibration_fraction", "PGD"):
        assert words in page.text
    for name in ("dynamics", "reliability", "certified", "confidence"):
        assert (runs / "list" / "figures" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert (runs / "list" / "figures" / f"{name}.pdf").read_bytes().startswith(b"%PDF")


def test_several_runs_share_one_page(runs, tmp_path):
    path = write_report([runs / "list", runs / "fixed"], tmp_path / "both.html")
    page = Page(path)
    assert "The runs side by side" in page.text
    assert re.search(r"setting method\s*list\s*fixed", page.text)  # what the comparison is about
    assert "L stays fixed at 2 " in page.text
    assert "fixed: No attack has been made yet" in page.text
    assert (tmp_path / "both-figures" / "reliability.png").exists()
    with pytest.raises(UserError, match="the same run is given twice"):
        write_report([runs / "list", runs / "list"])


@pytest.mark.parametrize(
    ("spoil", "words", "figures"),
    [
        (lambda run: (run / "history.jsonl").unlink(), "history.jsonl) is missing", 3),
        (lambda run: (run / "history.jsonl").write_text('{"phase": 1'), "missing or damaged", 3),
        (lambda run: (run / "history.jsonl").write_text('{"epoch": 1}\n'), "missing or damaged", 3),
        (lambda run: (run / "robustness.json").write_text('{"pgd": {}}'), "robustness.json is damaged", 4),
        (lambda run: (run / "robustness.json").write_text("{"), "robustness.json is damaged", 4),
        (lambda run: (run / "predictions.safetensors").unlink(), "test predictions are missing or damaged", 1),
        (lambda run: (run / "predictions.safetensors").write_bytes(b"torn"), "test predictions are missing", 1),
        (lambda run: (run / "robustness.json").unlink(), "No attack has been made yet: lipscale evaluate", 4),
    ],
)
def test_a_run_without_some_part_still_gives_a_report_that_says_so(runs, spoil, words, figures):
    spoil(runs / "list")
    page = Page(write_report([runs / "list"]))
    assert "What this report does not show" in page.text
    assert words in page.text
    assert len(page.labels) == figures


def test_a_run_without_phase_two_or_data_says_so(tmp_path):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(400, 5, generator=generator)
    y = (x[:, 0] > 0).long()
    import numpy as np

    file = tmp_path / "rows.npz"
    np.savez(file, x=x[:300], y=y[:300], x_test=x[300:], y_test=y[300:])
    quick(tmp_path / "r", data=str(file), limit=None, phase2_epochs=0)
    page = Page(write_report([tmp_path / "r"]))
    assert "There was no Phase II" in page.text
    assert re.search(r"test row \d+\s*column 0\s*-?\d", page.text)  # a table's rows have no pictures, but values
    file.unlink()
    assert "because the data set is not here" in Page(write_report([tmp_path / "r"])).text


def test_an_unfinished_run_is_an_error_that_says_how_to_go_on(runs):
    (runs / "list" / "metrics.json").unlink()
    with pytest.raises(UserError, match=r"is not finished .* lipscale.resume"):
        write_report([runs / "list"])
    with pytest.raises(UserError, match="is no run folder"):
        write_report([runs])


def test_what_users_name_their_classes_cannot_run_on_the_page(runs):
    about = json.loads((runs / "list" / "data.json").read_text())
    about["classes"] = [f"</script><script>alert({i})</script>" for i in range(10)]
    (runs / "list" / "data.json").write_text(json.dumps(about))
    text = write_report([runs / "list"]).read_text()
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert" in text


def test_folders_may_have_any_name(runs, tmp_path):
    for name in ("a$_b^{c$", "_hidden", "数字"):
        shutil.copytree(runs / "list", tmp_path / name)
    folders = [tmp_path / name for name in ("a$_b^{c$", "_hidden", "数字")]
    page = Page(write_report(folders, tmp_path / "names.html"))
    assert all(folder.name in page.text for folder in folders)
    with pytest.raises(UserError, match="is a folder; give a file"):
        write_report(folders, tmp_path)


def test_damaged_metrics_are_one_clear_error(runs):
    path = runs / "list" / "metrics.json"
    metrics = json.loads(path.read_text())
    del metrics["ece_limit"]
    path.write_text(json.dumps(metrics))
    with pytest.raises(UserError, match=r"metrics.json is damaged \(ece_limit: .*resume"):
        write_report([runs / "list"])


def test_the_curves_are_what_they_claim():
    torch.manual_seed(1)
    answers = Answers(3 * torch.randn(1000, 4), torch.randint(0, 4, (1000,)), torch.rand(1000))
    for eps, share in list(zip(*answers.certified_curve(), strict=True))[1:-1]:
        assert share == pytest.approx(float(((answers.certified >= eps) & answers.right).double().mean()))
    for threshold, coverage, accuracy in zip(*answers.selective_curves(), strict=True):
        kept = answers.confidence >= threshold
        assert coverage == pytest.approx(float(kept.double().mean()))
        assert accuracy == pytest.approx(float(answers.right[kept].double().mean()))


def test_relaxation_ends_where_l_is_largest(runs):
    (record,) = read_records([runs / "list"])
    constants = [epoch.lipschitz for epoch in record.history if epoch.phase == 1]
    assert constants[relaxation_end(record) - 1] == max(constants)


def test_l_is_drawn_at_every_epoch_from_its_start(runs):
    (record,) = read_records([runs / "list"])
    drawn = dynamics([record])
    points = {(int(x), y) for line in drawn.figure.axes[0].lines for x, y in zip(*line.get_data(), strict=True)}
    expected = [record.settings.lipschitz, *(epoch.lipschitz for epoch in record.history)]
    assert points == set(enumerate(expected))


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({}, "It is calibrated to within 2 points: confidence and accuracy differ by 1 point on average, with 95 %"),
        (
            {
                "calibrated": False,
                "calibration_error": 0.05,
                "calibration_error_limits": (0.03, 0.08),
                "esce": (0.02, 0.08),
            },
            "It is not calibrated to within 2 points",
        ),
        ({"esce": (0.02, 0.08)}, "too high (95 % interval 2 to 8 points)"),
        ({"esce": (-0.08, -0.02)}, "too low (95 % interval 2 to 8 points)"),
        ({"calibrated": None, "samples_to_decide": 2500}, "about 2,500 would decide"),
        ({}, "T = 1.02 (95 % interval 0.97 to 1.08; p-value of T = 1 0.400"),
        ({}, "60.0 % for changes up to 0.25"),
        ({}, "settled at L = 5 after 40 epochs"),
        ({"settled": False}, "had not settled after 40 epochs"),
        ({"settled": None}, "trained at a fixed L = 5"),
        ({"lipschitz_constant": None}, "carries no certificate"),
        ({"calibration_size": 144}, "no larger than a temperature from 144 calibration samples would leave"),
        ({"calibration_size": 0}, "no larger than a calibrated model on as many test samples would leave"),
        ({"advice": "6 samples know little"}, "Beware: 6 samples know little."),
    ],
)
def test_the_verdict_in_plain_words(changes, text):
    assert text in " ".join(verdict(made_up_metrics(**changes), "pixels in [0, 1]"))


def test_whether_it_is_as_good_as_its_set_is_never_said_first():
    said = verdict(made_up_metrics(calibration_size=144), "pixels in [0, 1]")
    place = next(i for i, sentence in enumerate(said) if "144 calibration samples" in sentence)
    assert place > next(i for i, sentence in enumerate(said) if "calibrated to within" in sentence)


def test_runs_side_by_side_have_every_epsilon_in_order(runs):
    first, second = read_records([runs / "list", runs / "fixed"])
    second = replace(second, metrics=replace(second.metrics, certified_accuracy={"0.1": 0.9, "1": 0.1}))
    rows = dict(side_by_side([first, second]))
    shares = {
        name.rsplit(" ", 1)[1]: [cell.value for cell in cells] for name, cells in rows.items() if "certified" in name
    }
    assert list(shares) == ["0.1", "0.1412", "0.25", "0.5", "1"]
    assert shares["1"] == ["", "0.1000"]
    assert shares["0.25"] == [f"{first.metrics.certified_accuracy['0.25']:.4f}", ""]
    free = replace(second, metrics=replace(second.metrics, lipschitz_constant=None))
    assert dict(side_by_side([first, free]))["proven bound"][1].value == "none (unconstrained)"


@pytest.mark.slow
def test_the_command(runs, tmp_path):
    done = lipscale("report", runs / "list", runs / "fixed", "--out", tmp_path / "c.html")
    assert done.stdout.split() == ["Report:", f"{tmp_path / 'c.html'}", "Figures:", f"{tmp_path / 'c-figures'}"]
    failed = lipscale("report", tmp_path, check=False)
    assert failed.returncode == 2
    assert "is no run folder" in failed.stderr


def seen(browser, path, **options):
    return visit(browser, path.resolve().as_uri(), **options)


def slide(page, name, value):
    move(page, name, value)
    return page.inner_text(f"#{name}-text"), page.get_attribute(f"#{name}-chart .cursor", "x1")


@pytest.mark.slow
def test_the_sliders_move_figures_and_words_in_a_browser(browser, runs):
    page, troubles = seen(browser, write_report([runs / "list"]))
    answers = read_records([runs / "list"])[0].answers
    words, left = slide(page, "epsilon", 0)
    assert f"{100 * float(answers.right.double().mean()):.1f} %" in words
    words, right = slide(page, "epsilon", 1000)
    assert "0.0 % of the test samples" in words
    assert float(left) < float(right)
    words, left = slide(page, "threshold", 0)
    assert "100.0 % of the samples get an answer" in words
    words, right = slide(page, "threshold", 800)
    coverage = float((answers.confidence >= 0.8).double().mean())
    shown = float(re.search(r"([\d.]+) % of the samples", words)[1]) / 100 if "get an answer" in words else 0.0
    assert shown == pytest.approx(coverage, abs=0.00051)  # as shown, to a tenth of a point
    assert float(left) < float(right)
    assert troubles == []


@pytest.mark.slow
@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_fits_phones_and_follows_dark_mode(browser, runs, tmp_path, width, scheme):
    path = write_report([runs / "list", runs / "fixed"], tmp_path / "both.html")
    page, troubles = seen(browser, path, viewport={"width": width, "height": 800}, color_scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert is_dark(page) == (scheme == "dark")
    label = page.evaluate("getComputedStyle(document.querySelector('figure svg text')).fill")
    assert (sum(map(int, re.findall(r"\d+", label)[:3])) > 380) == (scheme == "dark")  # the plots follow, too
    assert troubles == []


@pytest.mark.slow
@pytest.mark.parametrize("width", [360, 700, 1280])
def test_words_are_explained_within_the_page_where_one_hovers_or_taps(browser, runs, width):
    is_phone = width < 600
    size = {"width": width, "height": 800}
    page, troubles = visit(browser, write_report([runs / "list"]).as_uri(), viewport=size, has_touch=is_phone)
    words = [word for word in page.query_selector_all(".term") if word.is_visible()]
    assert len(words) >= 5
    for word in words:
        tip = word.query_selector(".tip")
        assert not tip.is_visible()
        word.tap() if is_phone else word.hover()
        box = tip.bounding_box()
        assert box["width"] >= 100
        assert 0 <= box["x"] <= box["x"] + box["width"] <= width, word.inner_text()
    assert troubles == []
