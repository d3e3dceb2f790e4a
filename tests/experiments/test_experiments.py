"""Plans, recipes, tables and sweeps by themselves, and the commands that put them together."""

import csv
import io
import re
import statistics
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from experiment_makers import TINY, fake, stamps, tiny
from lipscale.cli import commands as cli
from lipscale.errors import UserError
from lipscale.experiments import profiles, published, recipes
from lipscale.experiments.plan import AttackBudget, describe, shared
from lipscale.experiments.profiles import PAPER, SMOKE
from lipscale.experiments.reproduce import ITEMS, items_of, plan_of, require_data
from lipscale.experiments.sweep import read_grid, rows_of
from lipscale.experiments.tables import Column, as_csv, as_latex, as_markdown, make_table, ranked
from makers import table_rows, write_csv


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
        words = [describe(run) for run in plan_of(["claims"], SMOKE)]
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
        for profile in (SMOKE, PAPER):
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
        fixed = recipes.fixed(SMOKE, 4).runs[0].settings
        assert fixed.epochs == recipes.lipschitz_scaling(SMOKE).runs[0].settings.epochs

    def test_the_tables_have_the_papers_rows(self):
        ours = {row.name for row in recipes.main_table(PAPER)}
        assert set(published.MAIN_TABLE) <= ours
        assert tuple(published.LOW_DATA) == PAPER.sizes
        assert {(row.group, row.name) for row in recipes.phase_table(PAPER)} >= set(published.PHASES)

    def test_low_data_and_phases_change_only_what_they_say(self):
        full = recipes.lipschitz_scaling(SMOKE).runs[0].settings
        sizes = {row.name: row.runs[0].settings for row in recipes.low_data_table(SMOKE)}
        assert sizes[f"N = {SMOKE.sizes[0]}"] == full
        assert sizes["N = 500"].limit == 500
        first, second, restarted = (row.runs[0].settings for row in recipes.phases(SMOKE, SMOKE.main))
        assert (first.phase1_only, second.phase1_only) == (True, False)
        assert second == full
        assert restarted.phase2_start == "restart"

    def test_a_profile_that_does_not_exist(self):
        with pytest.raises(UserError, match="expected mini or smoke or paper, got 'midi'"):
            profiles.profile_of("midi")

    def test_items(self):
        assert items_of(["all"]) == ["table1", "table2", "figures", "claims"] == list(ITEMS[:-1])
        with pytest.raises(UserError, match="unknown item 'table3'; known: table1"):
            items_of(["table3"])

    def test_missing_data_are_named_with_the_way_to_get_them(self, tmp_path, monkeypatch):
        monkeypatch.setattr("lipscale.data.registry.SYSTEM_FOLDERS", ())  # whatever this machine has
        monkeypatch.delenv("LIPSCALE_DATA", raising=False)
        with pytest.raises(UserError, match="cifar10 and fashion-mnist are not here.*lipscale data get cifar10"):
            require_data(plan_of(["claims"], SMOKE), tmp_path)


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


GRIDS = {
    "an unknown key": ("method: [list]", "method: .*known: settings, methods"),
    "an unknown method": ("methods: [lists]", "method.*lists"),
    "an unknown setting": ("settings: {epoch: 3}", "unknown setting 'epoch'; did you mean 'epochs'"),
    "a negative constant": ("constants: [-1]", "constants.0"),
    "no seeds": ("seeds: []", "seeds: .*at least 1"),
    "a word for a number": ("offsets: [much]", "offsets.0"),
    "an unknown attack": ("attack: {name: fgsm}", "attack.name"),
    "no YAML": ("methods: [", "as a grid in YAML"),
    "a list": ("[1, 2]", "the file"),
    "a key that stands twice": ("seeds: [0]\nseeds: [1]", "line 2: 'seeds' is given twice"),
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
        with pytest.raises(UserError, match="none.yaml does not exist"):
            read_grid(tmp_path / "none.yaml")


class TestCommands:
    @pytest.fixture
    def small(self, monkeypatch):
        """A profile of minutes instead of hours: everything real, and tiny."""
        sets = {name: {**TINY, "limit": limit} for name, limit in (("a", 300), ("b", 200), ("c", 150))}
        profile = replace(
            SMOKE,
            name="mini",
            sets=sets,
            search={"epochs": 3, "phase2_epochs": 1},
            epochs=dict.fromkeys(SMOKE.epochs, 1),
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

    @pytest.mark.long
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
            (["reproduce", "table1", "--profile", "big"], "expected mini or smoke or paper"),
            (["reproduce", "table1", "--data-dir", str(tmp_path)], "cifar10 is not here"),
        ):
            with pytest.raises(UserError, match=match):
                CliRunner().invoke(cli.app, arguments, catch_exceptions=False)
        assert list(tmp_path.iterdir()) == []
