"""Tables as they come: dates, ids, zip codes, decimal commas, gaps; and numbers that training never saw."""

import datetime
import json
from dataclasses import asdict, replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from pydantic import TypeAdapter

from conftest import centred
from lipscale import certify, models, set_lipschitz
from lipscale.data import Column, DataSettings, Preprocessing, load_dataset, prepare
from lipscale.data.dates import ISO, form_of, is_ambiguous, parse_dates
from lipscale.data.encode import encode, outside, raw_radii
from lipscale.data.input_files import read_files
from lipscale.data.inputs import as_inputs
from lipscale.errors import UserError
from lipscale.runs.folder import StoredData
from makers import write_csv

DAY = datetime.date(2024, 2, 28)
DAYS = [DAY + datetime.timedelta(days=i) for i in range(60)]
FIRST = (DAY - datetime.date(1970, 1, 1)).days


def load(path, rows=None, header=("a", "y"), *, delimiter=",", **options):
    if rows is not None:
        write_csv(path, rows, header=header, delimiter=delimiter)
    return load_dataset(DataSettings(data=str(path), **{"label": "y", "test_data": path} | options))


def labelled(*columns):
    return [[*row, f"c{i % 2}"] for i, row in enumerate(zip(*columns, strict=True))]


class TestDates:
    @pytest.mark.parametrize(
        "form", ["%Y-%m-%d", "%d.%m.%Y", "%m/%d/%Y", "%d/%m/%Y", "%Y/%m/%d", "%d %b %Y", "%b %d, %Y"]
    )
    def test_every_usual_form_is_the_same_number_of_days(self, tmp_path, form):
        found = load(tmp_path / "t.csv", labelled([day.strftime(form) for day in DAYS]))
        assert found.train.inputs[:, 0].tolist() == [FIRST + i for i in range(60)]
        assert found.columns[0].dates == (ISO if form == "%Y-%m-%d" else form)

    def test_times_and_zones_are_fractions_of_a_day(self):
        texts = ["2024-01-01", "2024-01-01 06:00", "2024-01-01T06:00:00", "2024-01-01T06:00:00+06:00", "20240101", "x"]
        days = parse_dates(texts, ISO) - parse_dates(texts[:1], ISO)
        np.testing.assert_allclose(days[:4], [0, 0.25, 0.25, 0], atol=1e-9)
        assert np.isnan(days[4:]).all()
        assert form_of(["31.12.2024 18:30", "01.01.2025 00:00"]) == "%d.%m.%Y %H:%M"
        assert form_of(["red", "green", "1.2.3"]) == ""

    def test_typed_columns_are_read_as_texts_are(self, tmp_path):
        y = [f"c{i % 2}" for i in range(60)]
        stamps = [datetime.datetime.combine(day, datetime.time(12)) for day in DAYS]
        columns = {
            "a": DAYS,
            "b": pa.array(stamps, pa.timestamp("ns")),
            "c": pa.array(stamps, pa.timestamp("ms", "UTC")),
        }
        pq.write_table(pa.table({**columns, "y": y}), tmp_path / "t.parquet")
        found = load(tmp_path / "t.parquet")
        expected = torch.arange(FIRST, FIRST + 60, dtype=torch.float64)
        torch.testing.assert_close(found.train.inputs, torch.stack([expected, expected + 0.5, expected + 0.5], 1))

    def test_what_could_be_month_or_day_is_named_and_stays_as_it_was_decided(self, tmp_path, caplog):
        few = [day for day in DAYS if day.day < 13][:12]
        raw = load(tmp_path / "t.csv", labelled([day.strftime("%d/%m/%Y") for day in few]))
        assert "'a' is taken for dates of the form %d/%m/%Y: day or month first?" in caplog.text
        assert not is_ambiguous(["31/12/2024"], "%d/%m/%Y")
        _, done = prepare(raw)
        one, two = (as_inputs({"a": texts}, done).raw for texts in (["02/03/2024"], ["2024-03-02"]))
        assert torch.equal(one, two)
        with pytest.raises(UserError, match="the table, row 2: column 'a' holds dates but here '13/13/2024'"):
            as_inputs({"a": ["02/03/2024", "13/13/2024"]}, done)


class TestIdsAndCodes:
    def test_what_tells_rows_apart_is_left_out_and_named(self, tmp_path, caplog):
        rng = np.random.default_rng(0)
        numbers = [f"{v:.3f}" for v in rng.normal(size=50)]
        ids = [str(v) for v in rng.permutation(10**6)[:50]]
        names = [f"person {i}" for i in range(50)]
        rows = labelled([str(i + 7) for i in range(50)], ids, names, ids, numbers)
        found = load(tmp_path / "t.csv", rows, header=("", "CustomerId", "name", "cents", "x", "y"))
        assert [column.name for column in found.columns] == ["cents", "x"]
        assert "'Unnamed: 0', 'CustomerId', 'name' are different in each row and left out" in caplog.text
        assert "'cents' is different in each row: if it is an id, leave it out (`drop`)" in caplog.text
        kept = load(tmp_path / "t.csv", numbers=("CustomerId",))
        assert [column.name for column in kept.columns] == ["CustomerId", "cents", "x"]

    def test_measurements_and_ages_are_no_ids(self, tmp_path, caplog):
        ages, sizes = [str(20 + i % 30) for i in range(60)], [f"{i * 0.37:.4f}" for i in range(60)]
        found = load(tmp_path / "t.csv", labelled(ages, sizes), header=("paid", "b", "y"))
        assert len(found.columns) == 2
        assert caplog.text == ""

    def test_zip_codes_are_categories_and_keep_their_zeros(self, tmp_path, caplog):
        codes = [("01234", "99999", "00501", "10001")[i % 4] for i in range(40)]
        found = load(tmp_path / "t.csv", labelled(codes, [str(i % 9) for i in range(40)]), header=("zip", "n", "y"))
        assert found.columns == (Column("zip", ("00501", "01234", "10001", "99999")), Column("n"))
        assert "'zip' is taken for categories, as codes with leading zeros are (`numbers`)" in caplog.text
        forced = load(tmp_path / "t.csv", numbers=("zip",))
        assert forced.columns[0] == Column("zip")
        assert forced.train.inputs[0, 0] == 1234

    def test_a_column_cannot_be_both(self, tmp_path):
        with pytest.raises(UserError, match="column 'a' cannot be in `categories` and in `numbers`"):
            load(tmp_path / "t.csv", labelled(["1", "2"] * 9), numbers=("a",), categories=("a",))


class TestNumbers:
    @pytest.mark.parametrize("delimiter", [";", ","])
    def test_decimal_commas(self, tmp_path, delimiter):
        values = [i * 1.25 - 7 for i in range(40)]
        texts = [f"{v:g}".replace(".", ",") for v in values]
        found = load(tmp_path / "t.csv", labelled(texts), delimiter=delimiter)
        assert found.train.inputs[:, 0].tolist() == values
        assert found.columns == (Column("a"),)

    def test_in_a_file_with_semicolons_three_digits_are_decimals(self, tmp_path):
        found = load(tmp_path / "t.csv", labelled([f"{i % 5},{100 + i}" for i in range(40)]), delimiter=";")
        assert found.train.inputs[7, 0] == 2.107

    def test_a_gap_has_an_input_of_its_own_where_training_had_gaps(self, tmp_path, caplog):
        a = ["" if i % 5 == 0 else str(i % 9) for i in range(40)]
        raw = load(tmp_path / "t.csv", labelled(a, [str(i % 7) for i in range(40)]), header=("a", "b", "y"))
        ready, done = prepare(raw)
        assert [column.missing for column in done.columns] == [True, False]
        x = ready.train.inputs
        assert x.shape == (40, 3)
        assert torch.equal(x[:, 1], torch.tensor([float(i % 5 == 0) for i in range(40)]))
        assert (x[::5, 0] == 0).all()
        gap, filled = (encode(torch.tensor([[v, 1.0]]), done)[0] for v in (torch.nan, done.column_mean[0]))
        torch.testing.assert_close((gap - filled).norm(), torch.tensor(1.0))
        caplog.clear()
        assert as_inputs({"a": [None], "b": [1.0]}, done).ready[0, 1] == 1
        assert caplog.text == ""
        no_gap_before = as_inputs({"a": [1.0], "b": [None]}, done).ready
        assert "1 values are missing, such as 'b' in row 1" in caplog.text
        assert no_gap_before[0, 2] == 0


class TestFarOutside:
    def run_columns(self):
        columns = (Column("amount"), Column("kind", ("p", "q")))
        return Preprocessing((3,), (0.0,) * 3, "s", (5.0, 0.0), (2.0, 1.0), columns, ((0.0, 10.0), (0.0, 1.0)))

    def test_beyond_the_range_by_more_than_its_width(self):
        raw = torch.tensor([[-10.0, 0], [-10.1, 1], [20.0, 0], [1e9, 1], [torch.nan, 1]], dtype=torch.float64)
        far = outside(raw, self.run_columns())
        assert far.tolist() == [[False, False], [True, False], [False, False], [True, False], [False, False]]
        assert not outside(raw, replace(self.run_columns(), column_range=())).any()

    def test_rows_and_the_terminal_name_the_column(self, tmp_path, caplog):
        path = write_csv(tmp_path / "new.csv", [["5", "p"], ["1000000000", "q"]], header=("amount", "kind"))
        (found,) = read_files([path], self.run_columns())
        assert found.outside == ["", "amount"]
        assert "1 of 2 rows lie far outside" in caplog.text
        assert "in amount: answers mean little" in caplog.text

    def test_a_category_that_training_has_not_seen_is_flagged_and_is_no_category(self, caplog):
        found = as_inputs({"amount": [5.0, 5.0, 1e9], "kind": ["q", "r", "s"]}, self.run_columns())
        assert found.outside == ["", "kind", "amount, kind"]
        assert found.ready[1].tolist() == [0.0, 0.0, 0.0]
        assert "2 of 3 rows" in caplog.text
        assert "missing" not in caplog.text


class TestRawRadii:
    def test_no_move_of_a_single_column_within_its_radius_changes_the_class(self):
        """An attack along each axis, by the network itself; far beyond the radius the class does change."""
        rng = np.random.default_rng(0)
        columns = (Column("amount", missing=True), Column("kind", ("p", "q")), Column("day", dates=ISO))
        scales = (3000.0, 1.0, 40.0)
        done = Preprocessing((5,), (0.0,) * 5, "s", (1e5, 0.0, 19000.0), scales, columns)
        net = models.mlp(3, (5,), 16)
        set_lipschitz(net, 6.0)
        raw = torch.from_numpy(
            np.stack([rng.normal(1e5, 3000, 60), rng.integers(0, 2, 60), rng.normal(19000, 40, 60)], 1)
        )
        raw[0, 0] = torch.nan
        centred(net, encode(raw, done))
        certificate = certify(net, encode(raw, done))
        moves = raw_radii(certificate.radius(), raw, done)
        assert moves[0, 0].isnan()
        assert moves[:, 1].isnan().all()
        classes, changed = certificate.logits.argmax(1), 0
        for at in (0, 2):
            expected = certificate.radius() * scales[at]
            torch.testing.assert_close(moves[1:, at], expected[1:], rtol=1e-5, atol=1e-5 * scales[at])
            assert (moves[1:, at] < expected[1:]).all()
            for share in (*np.linspace(-1, 1, 41), 50.0):
                moved = raw.clone()
                moved[:, at] += share * moves[:, at]
                after = certify(net, encode(moved, done)).logits.argmax(1)
                present = ~raw[:, at].isnan()
                if abs(share) <= 1:
                    assert torch.equal(after[present], classes[present])
                else:
                    changed += int((after != classes)[present].sum())
        assert changed > 10

    def test_in_a_long_tail_it_is_the_exact_way_back_and_holds(self):
        """sinh undoes asinh, as far as the nearer end of [a - r, a + r]; attacked on both sides."""
        rng = np.random.default_rng(1)
        columns = (Column("amount", long_tail=True), Column("age"))
        done = Preprocessing((2,), (0.0,) * 2, "s", (30.0, 50.0), (20.0, 9.0), columns)
        net = models.mlp(2, (2,), 16)
        set_lipschitz(net, 2.0)
        raw = torch.from_numpy(np.stack([rng.lognormal(3.5, 2, 60), rng.normal(50, 9, 60)], 1))
        certificate = certify(net, encode(raw, done))
        radii = certificate.radius().double()
        moves = raw_radii(radii, raw, done)[:, 0]
        inputs = torch.asinh((raw[:, 0] - 30) / 20)
        ends = torch.stack([20 * torch.sinh(inputs + side * radii) + 30 for side in (-1, 1)])
        torch.testing.assert_close(moves, (ends - raw[:, 0]).abs().amin(0), rtol=1e-4, atol=1e-3)
        for share in np.linspace(-1, 1, 41):
            moved = raw.clone()
            moved[:, 0] += share * moves
            assert ((encode(moved, done) - encode(raw, done)).double().norm(dim=1) <= radii).all()
            assert torch.equal(certify(net, encode(moved, done)).logits.argmax(1), certificate.logits.argmax(1))


class TestManyCategories:
    def rows(self):
        """150 zip codes, of which the first 120 occur ten times and more, all others once."""
        zips = [f"0{1000 + i % 120 if i < 1270 else 2000 + i}" for i in range(1300)]
        return labelled(zips, [str(i % 7) for i in range(1300)])

    def test_the_commonest_stay_and_the_others_are_one(self, tmp_path, caplog):
        found = load(tmp_path / "t.csv", self.rows(), ("zip", "b", "y"))
        column = found.columns[0]
        assert (len(column.categories), column.categories[-1], column.other) == (100, "(other)", True)
        assert "'zip' is of too many categories: the 99 commonest stay, all others are one" in caplog.text
        counts = found.train.inputs[:, 0].long().bincount()
        assert int(counts[:-1].min()) >= 10
        assert int(counts[-1]) == 1300 - int(counts[:-1].sum()) >= 30

    def test_one_that_a_run_has_not_seen_is_one_of_the_others(self, tmp_path, caplog):
        _, done = prepare(load(tmp_path / "t.csv", self.rows(), ("zip", "b", "y")))
        caplog.clear()
        new = as_inputs({"zip": ["99999", None], "b": [3, 3]}, done)
        assert new.outside == ["", ""]
        assert new.ready[0, 99] == pytest.approx(0.5**0.5)
        assert new.ready[1, :100].abs().sum() == 0  # missing is no category, not even another one
        assert "1 values are missing, such as 'zip' in row 2" in caplog.text


class TestLongTails:
    def test_only_a_column_whose_deviation_tells_of_its_tail_alone_is_squeezed(self, tmp_path):
        rng = np.random.default_rng(0)
        columns = (
            rng.lognormal(3, 1.5, 200),
            rng.normal(3, 1.5, 200),
            rng.exponential(5, 200),
            (np.arange(200) % 40 == 0) * 1,
        )
        dataset, done = prepare(load(tmp_path / "t.csv", labelled(*columns), ("amount", "b", "c", "d", "y")))
        assert [column.long_tail for column in done.columns] == [True, False, False, False]
        assert done.unit == "standard deviations (long tails are squeezed)"
        low, middle, high = np.quantile(columns[0], [0.25, 0.5, 0.75])
        expected = np.arcsinh((columns[0] - middle) * 1.349 / (high - low))
        np.testing.assert_allclose(dataset.train.inputs[:, 0], expected, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(dataset.train.inputs[:, 1].std(correction=0), 1, rtol=1e-5)

    def test_a_gap_in_it_is_its_median(self, tmp_path):
        amounts = [*np.random.default_rng(0).lognormal(3, 1.5, 199).tolist(), ""]
        dataset, _ = prepare(load(tmp_path / "t.csv", labelled(amounts)))
        assert dataset.train.inputs[-1].tolist() == [0.0, 1.0]


def test_what_earlier_versions_stored_still_loads():
    columns = (Column("a"), Column("kind", ("p", "q")))
    now = Preprocessing((3,), (0.0,) * 3, "s", (1.0, 0.0), (2.0, 1.0), columns)
    stored = json.loads(json.dumps({"classes": ["x", "y"], "preprocessing": asdict(now)}))
    del stored["preprocessing"]["column_range"]
    for column in stored["preprocessing"]["columns"]:
        del column["dates"], column["missing"], column["long_tail"], column["other"]
    assert TypeAdapter(StoredData).validate_python(stored).preprocessing == now
    assert as_inputs({"kind": ["q"], "a": [5]}, now).ready.tolist() == [[2.0, 0.0, pytest.approx(0.5**0.5)]]
