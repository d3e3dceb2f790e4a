"""Plans, tables, claims and sweeps by themselves; and real runs in real processes, killed for real."""

import csv
import io
import math
import os
import re
import signal
import statistics
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml
from scipy import stats
from typer.testing import CliRunner

from lipscale import cli
from lipscale.config import Settings
from lipscale.errors import UnwritableError, UserError
from lipscale.experiments import claims, pool, profiles, published, recipes
from lipscale.experiments.claims import FAILS, HOLDS, OPEN
from lipscale.experiments.plan import AttackBudget, Planned, Row, describe, shared
from lipscale.experiments.pool import LOCKS, carry_out, finished, make
from lipscale.experiments.profiles import MINI, PAPER
from lipscale.experiments.reproduce import ITEMS, items_of, plan_of, require_data
from lipscale.experiments.results import Results, read_result
from lipscale.experiments.sweep import read_grid, rows_of
from lipscale.experiments.tables import Column, as_csv, as_latex, as_markdown, make_table, ranked
from lipscale.folder_lock import locked
from lipscale.run_folder import CHECKPOINT, METRICS, MODEL, PREDICTIONS
from makers import table_rows, write_csv

TINY = {"data": "digits", "model": "mlp", "width": 8, "depth": 1, "epochs": 2, "limit": 300, "device": "cpu"}


def tiny(**changes):
    return Planned(Settings.model_validate({**TINY, **changes}))


class TestPlan:
    def test_a_run_is_known_by_what_decides_its_result(self, tmp_path):
        run = tiny()
        elsewhere = tiny(out=tmp_path / "x", data_dir=tmp_path)
        assert run.digest == elsewhere.digest
        assert len({run.digest, tiny(seed=1).digest, tiny(offset=1.0).digest, tiny(epochs=3).digest}) == 4

    def test_a_changed_file_is_another_run(self, tmp_path):
        path = write_csv(tmp_path / "t.csv", table_rows(30))
        before = tiny(data=str(path), label="y", limit=None).digest
        assert tiny(data=str(path), label="y", limit=None).digest == before
        write_csv(path, table_rows(31))
        assert tiny(data=str(path), label="y", limit=None).digest != before

    def test_different_runs_have_different_names_in_words(self):
        words = [describe(run) for run in plan_of(["claims"], MINI)]
        assert len(set(words)) == len(words)

    def test_what_a_run_takes_over_decides_its_result_too(self):
        run = tiny()
        follower = replace(run, follows=tiny(seed=5), takes="lipschitz")
        other = replace(run, follows=tiny(seed=6), takes="lipschitz")
        assert len({run.digest, follower.digest, other.digest}) == 3

    def test_shared_runs_are_made_once_attacked_if_anybody_asks_and_in_order(self):
        budget = AttackBudget("pgd", 0.5, 10)
        first, second = tiny(), tiny(seed=1)
        follower = replace(tiny(method="fixed"), follows=second, takes="lipschitz")
        plan = shared([follower, first, replace(first, attack=budget), first, second])
        assert [run.digest for run in plan] == [second.digest, follower.digest, first.digest]
        assert plan[2].attack == budget

    def test_names_are_fit_for_folders(self):
        for profile in (MINI, PAPER):
            for run in plan_of(["claims"], profile):
                assert re.fullmatch(r"[\w.=-]+", run.name), run.name
        assert re.fullmatch(r"[\w.=-]+", tiny(data="../my data/a $b;.csv", limit=None).name)


class TestRecipes:
    """Every sentence of Sec. 5.1 and App. E that is a number is a setting."""

    def test_the_paper_profile_has_the_papers_budgets(self):
        rows = {row.name: row.runs[0].settings for row in recipes.main_table(PAPER)}
        epochs = ("Standard", "Label Smooth.", "Focal Loss", "PGD-AT", "CAAT")
        assert [rows[name].epochs for name in epochs] == [100, 100, 350, 200, 200]
        ours = rows["LiST (xi = 0)"]
        assert (ours.lipschitz, ours.window, ours.tolerance, ours.phase2_epochs) == (1.0, 30, 0.001, 100)
        assert (ours.feedback, ours.calibration_fraction, ours.model, ours.width) == ("paper", 0.1, "resnet18", 64)
        assert {settings.optimizer for settings in rows.values()} == {"schedulefree"}
        assert list(PAPER.constants) == [1, 2, 4, 8, 16, 32, 64, 128]
        assert all(len(row.runs) == 3 for row in recipes.main_table(PAPER))
        assert all(run.attack.samples == 10_000 for row in recipes.main_table(PAPER) for run in row.runs)

    def test_fixed_constants_train_for_as_long_as_list_took(self):
        row = recipes.fixed(PAPER, 32, "CIFAR-10")
        source = recipes.lipschitz_scaling(PAPER, 0.0, "CIFAR-10").runs[0]
        assert all(run.takes == "epochs" and run.follows.digest == source.digest for run in row.runs)
        fixed = recipes.fixed(MINI, 4).runs[0].settings
        assert fixed.epochs == recipes.lipschitz_scaling(MINI).runs[0].settings.epochs

    def test_the_tables_have_the_papers_rows(self):
        ours = {row.name for row in recipes.main_table(PAPER)}
        assert set(published.MAIN_TABLE) <= ours
        assert tuple(published.LOW_DATA) == PAPER.sizes
        assert {(row.group, row.name) for row in recipes.phase_table(PAPER)} >= set(published.PHASES)

    def test_low_data_and_phases_change_only_what_they_say(self):
        full = recipes.lipschitz_scaling(MINI).runs[0].settings
        assert recipes.low_data(MINI, MINI.sizes[0]).runs[0].settings == full
        assert recipes.low_data(MINI, 500).runs[0].settings.limit == 500
        first, second, restarted = (row.runs[0].settings for row in recipes.phases(MINI, MINI.main))
        assert (first.phase1_only, second.phase1_only) == (True, False)
        assert second == full
        assert restarted.phase2_start == "restart"

    def test_a_profile_that_does_not_exist(self):
        with pytest.raises(UserError, match="expected mini or paper, got 'midi'"):
            profiles.profile_of("midi")

    def test_items(self):
        assert items_of(["all"]) == ["table1", "table2", "figures", "claims"] == list(ITEMS[:-1])
        with pytest.raises(UserError, match="unknown item 'table3'; known: table1"):
            items_of(["table3"])

    def test_missing_data_are_named_with_the_way_to_get_them(self, tmp_path):
        with pytest.raises(UserError, match="cifar10 and fashion-mnist are not here.*lipscale data get cifar10"):
            require_data(plan_of(["claims"], MINI), tmp_path)


def fake(**metrics):
    """What a table or claim sees of a run."""
    return SimpleNamespace(metrics=metrics, **metrics)


class TestTables:
    ACCURACY = Column("acc", lambda r: r.accuracy, "higher")
    ECE = Column("ECE", lambda r: r.ece, "lower")
    ESCE = Column("ESCE", lambda r: r.esce, "zero")
    ROWS = (
        ("A", "one", [fake(accuracy=0.9, ece=0.05, esce=-0.05), fake(accuracy=0.8, ece=0.03, esce=-0.03)]),
        ("A", "two", [fake(accuracy=0.7, ece=0.02, esce=0.001)]),
        ("B", "three", [fake(accuracy=0.85, ece=0.01, esce=0.01)]),
        ("B", "none", []),
    )

    def table(self, **options):
        return ranked(make_table("t", "row", (self.ACCURACY, self.ECE, self.ESCE), self.ROWS), **options)

    def places(self, table):
        return [[None if cell is None else cell.place for cell in line.cells] for line in table.lines]

    def test_the_best_and_the_second_of_each_column(self):
        # 85.00 twice: what prints alike shares its place
        assert self.places(self.table()) == [[1, 0, 0], [2, 2, 1], [1, 1, 2], [None] * 3]

    def test_places_within_blocks(self):
        assert self.places(self.table(within_blocks=True))[:2] == [[1, 2, 2], [2, 1, 1]]

    def test_markdown(self):
        lines = as_markdown(self.table()).splitlines()
        assert lines[0] == "| row | acc | ECE | ESCE |"
        assert lines[2] == "| A one | **85.00** ± 7.07 | 4.00 ± 1.41 | -4.00 ± 1.41 |"
        assert lines[3] == "| A two | <u>70.00</u> | <u>2.00</u> | **0.10** |"
        assert lines[5] == "| B none | n/a | n/a | n/a |"
        assert {line.count("|") for line in lines} == {5}

    def test_latex(self):
        text = as_latex(self.table())
        assert r"$\mathbf{85.00}_{\pm 7.07}$" in text
        assert r"$\underline{70.00}$" in text
        assert text.count("{") == text.count("}")
        rows = [line for line in text.splitlines() if line.endswith(r"\\")]
        assert {line.count("&") for line in rows} == {3}

    def test_csv_gives_the_numbers_back(self):
        rows = list(csv.DictReader(io.StringIO(as_csv(self.table()))))
        assert float(rows[0]["acc"]) == pytest.approx(100 * statistics.mean([0.9, 0.8]))
        assert float(rows[0]["acc, deviation"]) == pytest.approx(100 * statistics.stdev([0.9, 0.8]))
        assert rows[3]["ECE"] == ""

    def test_counts(self):
        column = Column("Calibrated", lambda r: float(r.ece < 0.04), shown="count")
        table = ranked(make_table("t", "row", (column,), self.ROWS))
        assert [cell and cell.count for line in table.lines for cell in line.cells] == [
            "1 of 2",
            "1 of 1",
            "1 of 1",
            None,
        ]


class TestClaims:
    """Each claim is fed with runs of which the answer is known."""

    class Given:
        """Results that are made up, by the row's name."""

        def __init__(self, make):
            self.make = make

        def of(self, row):
            return [result for k in range(len(row.runs)) if (result := self.make(row, k)) is not None]

    def decide(self, claim, make, data=MINI.main):
        verdict = claim(MINI, self.Given(make), data)
        assert verdict.claim
        assert verdict.test
        assert re.search(r"\d", verdict.figures)
        return verdict.verdict

    @staticmethod
    def constant(row):
        return float(row.name.split("= ")[1].rstrip(")"))

    def test_u_shape(self):
        def shape(signed):
            def make(row, k):
                esce = signed(math.log2(self.constant(row)))
                ends = {"ece": [abs(esce) - 0.01, abs(esce) + 0.01], "esce": [esce - 0.01, esce + 0.01]}
                return fake(ece=abs(esce), esce=esce, intervals=ends)

            return make

        assert self.decide(claims.ece_is_u_shaped, shape(lambda x: 0.1 * (x - 1))) == HOLDS
        assert self.decide(claims.ece_is_u_shaped, shape(lambda x: 0.1 * (x + 9))) == FAILS  # always over-confident
        assert self.decide(claims.ece_is_u_shaped, shape(lambda x: 0.1 * abs(x - 1))) == FAILS

    def test_crossing(self):
        generator = torch.Generator().manual_seed(0)
        logits = 2 * torch.randn(4000, 5, dtype=torch.float64, generator=generator)
        labels = torch.multinomial(torch.softmax(logits, 1), 1, generator=generator).squeeze(1)

        def with_temperature(of):
            def make(row, k):
                t = of(math.log2(self.constant(row)))
                return fake(temperature=t, answers=SimpleNamespace(logits=logits * t, labels=labels))

            return make

        assert self.decide(claims.temperature_crosses_once, with_temperature(lambda x: 2 ** (x - 1))) == HOLDS
        assert self.decide(claims.temperature_crosses_once, with_temperature(lambda x: 2 ** math.sin(x))) == FAILS
        assert self.decide(claims.temperature_crosses_once, with_temperature(lambda x: 2 ** (1 - x))) == FAILS

    def test_start(self):
        def spread(by, error=0.02, sign=lambda k: 1):
            def make(row, k):
                history = [{"phase": 1, "temperature_error": error}]
                return fake(
                    constant=3 + sign(k) * by * math.log10(self.constant(row)), facts=SimpleNamespace(history=history)
                )

            return make

        assert self.decide(claims.start_does_not_matter, spread(0.02)) == HOLDS
        assert self.decide(claims.start_does_not_matter, spread(0.2)) == FAILS
        assert self.decide(claims.start_does_not_matter, spread(0.05, error=0.2)) == OPEN  # too small to be resolved
        assert self.decide(claims.start_does_not_matter, spread(0.05, error=None)) == OPEN
        # spreads of single seeds count, even where they cancel in the mean
        assert self.decide(claims.start_does_not_matter, spread(0.2, sign=lambda k: (-1) ** k)) == FAILS

    def test_retraining(self):
        def made(calibrated):
            return lambda row, k: fake(constant=2.0, ece=0.1, limit=0.05, calibrated=calibrated(k))

        assert self.decide(claims.retraining_fails, made(lambda k: False)) == HOLDS
        assert self.decide(claims.retraining_fails, made(lambda k: True)) == FAILS
        assert self.decide(claims.retraining_fails, made(lambda k: k == 0)) == OPEN

    def test_front(self):
        def front(gain, calibrated=lambda xi: True):
            def make(row, k):
                xi = self.constant(row)
                run = fake(accuracy=0.8, ece=0.01, calibrated=calibrated(xi))
                run.certified = lambda eps: (0.5 if eps < 0.2 else 0.3) + gain * xi + 0.001 * (k - 2) * (1 + xi)
                return run

            return make

        assert self.decide(claims.offset_front_is_calibrated, front(0.05)) == HOLDS
        assert self.decide(claims.offset_front_is_calibrated, front(-0.05)) == FAILS
        assert self.decide(claims.offset_front_is_calibrated, front(0.05, lambda xi: xi < 3)) == FAILS
        assert self.decide(claims.offset_front_is_calibrated, front(0.0)) == OPEN

    def test_best(self):
        def eces(ours, best, noise=0.001):
            def make(row, k):
                ece = ours if row.name.startswith("LiST") else best if row.name == "L = 4" else 0.2
                return fake(ece=ece + (noise if row.name.startswith("LiST") else 0.001) * k)

            return make

        assert self.decide(claims.list_is_best, eces(0.01, 0.05)) == HOLDS
        assert self.decide(claims.list_is_best, eces(0.05, 0.05)) == HOLDS
        assert self.decide(claims.list_is_best, eces(0.05, 0.01)) == FAILS
        assert self.decide(claims.list_is_best, eces(0.02, 0.01, noise=0.04)) == OPEN  # noise is no merit

    def test_phases(self):
        generator = torch.Generator().manual_seed(0)

        def phases(gain, kept=True, ever=True):
            def make(row, k):
                after = row.name != "I"
                right = torch.rand(20000, generator=generator) < 0.6 + gain * after
                answers = SimpleNamespace(right=right, certified=right * 0.2)
                return fake(answers=answers, ece=0.01, calibrated=ever and (kept or not after))

            return make

        assert self.decide(claims.phase_two_helps, phases(0.05)) == HOLDS
        assert self.decide(claims.restart_helps, phases(0.05)) == HOLDS
        assert self.decide(claims.phase_two_helps, phases(-0.05)) == FAILS
        assert self.decide(claims.phase_two_helps, phases(0.05, kept=False)) == FAILS
        assert self.decide(claims.phase_two_helps, phases(0.0)) == OPEN
        assert (
            self.decide(claims.phase_two_helps, phases(0.05, ever=False)) == OPEN
        )  # none was calibrated to begin with

    def test_low_data(self):
        def grows(slope):
            return lambda row, k: fake(constant=10 + slope * math.log10(self.constant(row)) + 0.01 * k)

        assert self.decide(claims.less_data_smaller_constant, grows(1.0)) == HOLDS
        assert self.decide(claims.less_data_smaller_constant, grows(-1.0)) == FAILS
        assert self.decide(claims.less_data_smaller_constant, grows(0.0)) == OPEN

    def test_stop(self):
        def settles(curve):
            history = [{"phase": 1, "lipschitz": curve(e)} for e in range(3000)]
            return lambda row, k: fake(facts=SimpleNamespace(history=history))

        assert self.decide(claims.stop_is_robust, settles(lambda e: 3 + math.exp(-e / 50))) == HOLDS
        assert self.decide(claims.stop_is_robust, settles(lambda e: (e + 1) ** -0.04)) == FAILS  # drifts for ever
        assert self.decide(claims.stop_is_robust, settles(lambda e: 3 + e % 2)) == OPEN  # never fires

    def test_one_seed_or_a_missing_one_decides_nothing_that_seeds_must_decide(self):
        assert claims._doubt([1.0]) == claims._doubt([1.0], [2.0, 3.0]) == math.inf
        # scipy's own interval
        values, others = [1.0, 2.0, 4.0], [0.5, 0.6, 0.9, 0.2]
        low, high = stats.ttest_ind(values, others, equal_var=False).confidence_interval(0.95)
        assert claims._doubt(values, others) == pytest.approx((high - low) / 2)
        low, high = stats.ttest_1samp(values, 0).confidence_interval(0.95)
        assert claims._doubt(values) == pytest.approx((high - low) / 2)
        missing = self.Given(lambda row, k: fake(constant=1.0) if k else None)
        verdicts = {v.verdict for v in claims.decide_claims(MINI, missing)}
        assert verdicts == {OPEN}

    def test_the_interval_over_seeds_and_samples_covers_the_truth(self):
        generator = torch.Generator().manual_seed(0)

        def normal(*shape):
            return torch.randn(*shape, generator=generator, dtype=torch.float64)

        # seeds, samples and the rest, each of them the largest part once; the truth is 0
        for seed, sample, rest in ((1.0, 0.1, 0.1), (0.01, 3.0, 0.1), (0.01, 0.1, 9.0), (0.2, 4.0, 9.0)):
            draws = [seed * normal(5, 1) + sample * normal(1, 200) + rest * normal(5, 200) for _ in range(400)]
            covered = [abs(float(draw.mean())) <= claims._crossed_doubt(draw) for draw in draws]
            assert 0.93 <= statistics.mean(covered) <= 1  # never too narrow; wide where seeds matter little
        assert claims._crossed_doubt(normal(1, 200)) == math.inf

    def test_what_is_not_there_is_not_decided(self):
        verdicts = claims.decide_claims(MINI, self.Given(lambda row, k: None))
        assert {v.verdict for v in verdicts} == {OPEN}
        assert len({v.claim for v in verdicts}) >= 11


GRIDS = {
    "an unknown key": ("method: [list]", "method: .*known: settings, methods"),
    "an unknown method": ("methods: [lists]", "method.*lists"),
    "an unknown setting": ("settings: {epoch: 3}", "unknown setting 'epoch'; did you mean 'epochs'"),
    "a negative constant": ("constants: [-1]", "constants.0"),
    "no seeds": ("seeds: []", "seeds: .*at least 1"),
    "a word for a number": ("offsets: [much]", "offsets.0"),
    "an unknown attack": ("attack: {name: fgsm}", "attack.name"),
    "no YAML": ("methods: [", "no valid YAML"),
    "a list": ("[1, 2]", "the file"),
    "an alias": ("settings: &a {data: digits}\nattack: *a", "aliases"),
    "a setting that the grid decides": ("settings: {offset: 2}", "offset -> offsets"),
    "a truth for a seed": ("seeds: [yes]", "seeds.0"),
    "an infinite offset": ("offsets: [.inf]", "offsets.0"),
    "a constant beyond all bounds": ("methods: [fixed]\nconstants: [1.0e+300]", "lipschitz"),
    "a binary": (b"\xff\xfe\0", "cannot read"),
}


class TestSweep:
    def grid(self, tmp_path, text):
        path = tmp_path / "grid.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    def test_the_grid_is_the_product(self, tmp_path):
        text = "methods: [list, fixed]\noffsets: [0, 3]\nconstants: [1, 4, 16]\nseeds: [0, 1]"
        rows = rows_of(read_grid(self.grid(tmp_path, text)))
        assert [row.name for row in rows][:3] == ["list xi = 0", "list xi = 3", "fixed L = 1 xi = 0"]
        assert len(rows) == 2 + 3 * 2
        assert all([run.settings.seed for run in row.runs] == [0, 1] for row in rows)
        assert rows[-1].runs[0].settings.lipschitz == 16
        assert rows[-1].runs[0].settings.offset == 3

    def test_what_is_given_twice_is_made_once(self, tmp_path):
        text = "methods: [fixed, fixed]\noffsets: [0, 0.0]\nconstants: [4, 4.0]\nseeds: [1, 1]"
        (row,) = rows_of(read_grid(self.grid(tmp_path, text)))
        assert len(row.runs) == 1

    @pytest.mark.parametrize("name", GRIDS)
    def test_bad_grids(self, tmp_path, name):
        text, match = GRIDS[name]
        with pytest.raises(UserError, match=match) as caught:
            rows_of(read_grid(self.grid(tmp_path, text)))
        assert len(str(caught.value).splitlines()) == 1

    def test_a_grid_that_is_not_there(self, tmp_path):
        with pytest.raises(UserError, match="cannot read the grid"):
            read_grid(tmp_path / "none.yaml")


def stamps(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Three runs, made in two processes: one attacked, one that follows it, one of LiST."""
    folder = tmp_path_factory.mktemp("pool")
    unit = replace(tiny(method="fixed", lipschitz=1.0), attack=AttackBudget("pgd", 0.5, 20))
    plan = shared([unit, replace(tiny(method="fixed"), follows=unit, takes="lipschitz"), tiny()])
    return folder, plan, carry_out(plan, folder, jobs=2)


class TestPool:
    def test_all_are_made_and_what_follows_takes_over(self, made):
        folder, plan, outcome = made
        assert outcome.failed == []
        assert len(outcome.made) == 3
        unit, retrained, ours = (read_result(folder, run) for run in plan)
        assert retrained.constant == pytest.approx(1 / unit.metrics["temperature"])
        assert unit.robust["samples"] == 20
        assert ours.epochs == 2
        assert len(Results(folder, plan)) == 3
        assert Results(folder, plan).of(Row("x", tuple(plan)))[0].constant == 1

    def test_what_is_done_is_left_alone(self, made):
        folder, plan, _ = made
        before = stamps(folder)
        outcome = carry_out(plan, folder, jobs=2)
        assert (len(outcome.skipped), outcome.made) == (3, [])
        assert stamps(folder) == before

    @pytest.mark.parametrize("wreck", ["no metrics", "half a network", "half the predictions", "no answer", "a wreck"])
    def test_what_is_damaged_is_done_again_to_the_same_result(self, made, wreck):
        folder, plan, _ = made
        run = plan[2]
        place = folder / run.name
        good = (place / METRICS).read_text()
        if wreck in ("no metrics", "a wreck"):
            (place / METRICS).unlink()
        if wreck == "half a network":
            (place / MODEL).write_bytes((place / MODEL).read_bytes()[:500])
        if wreck == "half the predictions":
            (place / PREDICTIONS).write_bytes(b"")
        if wreck == "no answer":
            (place / METRICS).write_text("[]")
        if wreck == "a wreck":
            (place / CHECKPOINT).write_bytes(b"nothing good")
        assert not finished(folder, run)
        make(run, folder, should_stop=lambda: False)
        assert finished(folder, run)
        same = [re.sub(r'"seconds": .*', "", text) for text in (good, (place / METRICS).read_text())]
        assert same[0] == same[1]

    def test_small_damage_is_mended_from_the_checkpoint(self, made):
        folder, plan, _ = made
        place = folder / plan[2].name
        checkpoint = stamps(place)[place / CHECKPOINT]
        (place / PREDICTIONS).write_bytes(b"")
        make(plan[2], folder, should_stop=lambda: False)
        assert finished(folder, plan[2])
        assert stamps(place)[place / CHECKPOINT] == checkpoint  # nothing was trained again

    def test_a_full_disk_or_missing_data_do_not_cost_a_good_checkpoint(self, made, monkeypatch, tmp_path):
        folder, plan, _ = made
        run = plan[2]
        place = folder / run.name
        (place / METRICS).unlink()
        before = stamps(place)
        for broken, error in (("evaluate", UnwritableError("no space")), ("read_data", UserError("no data"))):
            with monkeypatch.context() as patch:

                def fail(*_, error=error, **__):
                    raise error

                patch.setattr(f"lipscale.run.{broken}", fail)
                with pytest.raises(UserError, match="no space|no data"):
                    make(run, folder, should_stop=lambda: False)
            assert stamps(place)[place / CHECKPOINT] == before[place / CHECKPOINT]
        make(run, folder, should_stop=lambda: False)
        assert finished(folder, run)

    def test_what_another_process_works_on_is_left_alone(self, made):
        folder, plan, _ = made
        with locked(folder / LOCKS / plan[2].name), pytest.raises(UserError, match="another process"):
            make(plan[2], folder, should_stop=lambda: False)

    def test_a_run_of_another_version_is_made_again(self, made, monkeypatch):
        folder, plan, _ = made
        monkeypatch.setattr(pool, "version", lambda name: "999")
        assert not finished(folder, plan[2])

    @pytest.mark.slow
    def test_a_killed_process_costs_nothing_but_time(self, tmp_path):
        plan = [tiny(epochs=300, seed=seed) for seed in range(2)]
        killed = []

        def kill_one():
            if not killed and (started := list(tmp_path.glob(f"*/{CHECKPOINT}"))):
                killed.append(started)
                os.kill(next(iter(children_of(os.getpid()))), signal.SIGKILL)
            return False

        outcome = carry_out(plan, tmp_path, jobs=2, should_stop=kill_one)
        assert killed
        assert outcome.failed == []
        assert {run.digest for run in outcome.made} == {run.digest for run in plan}

    def test_an_error_that_nobody_expected_is_that_runs_alone(self, tmp_path):
        bad = tiny(seed=3)
        (tmp_path / "runs" / bad.name / "wreck").mkdir(parents=True)
        (tmp_path / "runs" / f"{bad.name}.damaged").write_text("in the way")
        outcome = carry_out([bad, tiny()], tmp_path / "runs", jobs=1)
        assert len(outcome.made) == 1
        ((run, why),) = outcome.failed
        assert run.digest == bad.digest
        assert why.startswith("NotADirectoryError")

    def test_a_failed_run_takes_those_that_follow_it_along_and_no_other(self, tmp_path):
        bad = tiny(method="fixed", batch_size=100_000)
        plan = shared([replace(tiny(method="fixed"), follows=bad, takes="lipschitz"), tiny()])
        outcome = carry_out(plan, tmp_path, jobs=2)
        assert len(outcome.made) == 1
        (first, why), (second, consequence) = outcome.failed
        assert (first.digest, second.digest) == (plan[0].digest, plan[1].digest)
        assert "batch_size 100000 is larger" in why
        assert consequence == "the run that it follows has failed"

    @pytest.mark.slow
    def test_killed_in_the_middle_it_goes_on_and_leaves_no_process_behind(self, tmp_path):
        grid = {"settings": {**TINY, "epochs": 60}, "methods": ["list"], "seeds": [0, 1, 2]}
        (tmp_path / "grid.yaml").write_text(yaml.safe_dump(grid))
        command = [sys.executable, "-m", "lipscale.cli", "sweep", "grid.yaml", "--jobs", "2"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(command, cwd=tmp_path, env=environment, start_new_session=True)
        runs = tmp_path / "sweeps" / "grid" / "runs"
        until = time.monotonic() + 240
        while not list(runs.glob(f"*/{CHECKPOINT}")) and time.monotonic() < until:
            time.sleep(0.05)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        assert list(runs.glob(f"*/{CHECKPOINT}"))
        while time.monotonic() < until and group_lives(process.pid):
            time.sleep(0.2)
        assert not group_lives(process.pid)
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stderr
        rows = list(csv.DictReader((tmp_path / "sweeps" / "grid" / "table.csv").open()))
        whole = carry_out(shared(rows_of(read_grid(tmp_path / "grid.yaml"))[0].runs), tmp_path / "whole", jobs=1)
        again = [read_result(tmp_path / "whole", run).metrics["ece"] for run in whole.made]
        assert float(rows[0]["ECE"]) == pytest.approx(100 * statistics.mean(again), rel=1e-12)


def children_of(parent):
    """Worker processes, not the helper that multiprocessing keeps beside them."""
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (path / "cmdline").read_bytes().decode(errors="replace")
            if int((path / "stat").read_text().rsplit(")", 1)[1].split()[1]) == parent and "spawn_main" in words:
                yield int(path.name)


def group_lives(group):
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


class TestCommands:
    @pytest.fixture
    def small(self, monkeypatch):
        """A profile of minutes instead of hours: everything real, and tiny."""
        sets = {name: {**TINY, "limit": limit} for name, limit in (("a", 300), ("b", 200), ("c", 150))}
        profile = replace(
            MINI,
            name="mini",
            sets=sets,
            search={"epochs": 3, "phase2_epochs": 1},
            epochs=dict.fromkeys(MINI.epochs, 1),
            seeds=dict.fromkeys(sets, (0,)),
            more_seeds=dict.fromkeys(sets, (0,)),
            sizes=(300, 250, 200, 150, 100),
            attack=AttackBudget("pgd", 0.5, 10),
            settling={**TINY, "epochs": 3},
            constants=(1, 4),
            offsets=(0, 1),
            starts=(1, 10),
        )
        monkeypatch.setitem(profiles.PROFILES, "mini", profile)
        return profile

    @pytest.mark.slow
    def test_reproduce_all_then_again_without_training(self, small, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        runner = CliRunner()
        listed = runner.invoke(cli.app, ["reproduce", "all", "--dry-run"], catch_exceptions=False)
        assert "to do" in listed.output
        assert not (tmp_path / "reproduction").exists()
        made = runner.invoke(cli.app, ["reproduce", "all", "--jobs", "2"], catch_exceptions=False)
        assert made.exit_code == 0, made.output
        out = tmp_path / "reproduction" / "mini"
        for name in ("table1", "table2-low-data", "table2-phases"):
            assert {(out / f"{name}{suffix}").exists() for suffix in (".md", ".tex", ".csv")} == {True}
        assert (out / "claims.md").read_text().count("**") >= 2 * 11
        page = (out / "RESULTS.md").read_text()
        for picture in re.findall(r"\]\((.*?\.png)\)", page):
            assert (out / picture).stat().st_size > 1000
        assert "34.66" in page
        runs = stamps(out / "runs")
        again = runner.invoke(cli.app, ["reproduce", "all"], catch_exceptions=False)
        assert again.exit_code == 0
        assert stamps(out / "runs") == runs
        assert (out / "RESULTS.md").read_text() == page
        done = runner.invoke(cli.app, ["reproduce", "all", "--dry-run"], catch_exceptions=False)
        assert "0 to do" in done.output

    def test_bad_input_is_said_before_any_run_starts(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        for arguments, match in (
            (["reproduce", "table9"], "unknown item 'table9'"),
            (["reproduce", "table1", "--profile", "big"], "expected mini or paper"),
            (["reproduce", "table1", "--data-dir", str(tmp_path)], "cifar10 is not here"),
        ):
            with pytest.raises(UserError, match=match):
                CliRunner().invoke(cli.app, arguments, catch_exceptions=False)
        assert list(tmp_path.iterdir()) == []
