"""Users' own data: pictures in folders, tables, CIFAR's python version and Tiny-ImageNet; read as they are."""

import os
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

import lipscale
from conftest import real_folder
from lipscale import data
from lipscale.data import Column, DataSettings, prepare, read_dataset
from lipscale.data.batches import epoch_batches
from lipscale.data.pictures import read_picture
from lipscale.data.plain_pickle import read_plain_pickle
from lipscale.data.stored import Stored, written
from lipscale.errors import UserError
from lipscale.losses import class_weights, offset_cross_entropy
from lipscale.runs.predict import as_bytes, predict, read_inputs
from lipscale.settings import Settings
from makers import (
    python2_pickle,
    python3_pickle,
    table_rows,
    write_cifar10_python,
    write_csv,
    write_folder,
    write_picture,
    write_tiny_imagenet,
)


def load_csv(path, **options):
    return read_dataset(DataSettings(data=str(path), **{"label": "y"} | options))


class TestTables:
    def test_numbers_are_standardised_and_categories_lie_a_distance_of_one_apart(self, tmp_path):
        ready, done = prepare(load_csv(write_csv(tmp_path / "t.csv", table_rows())))
        assert ready.classes == ("class0", "class1", "class2")
        assert done.columns == (Column("a"), Column("b"), Column("kind", ("blue", "green", "red")))
        assert done.unit == "standard deviations (a change of category counts 1)"
        x = ready.train.inputs
        assert x.shape == (96, 5)
        torch.testing.assert_close(x[:, :2].mean(0), torch.zeros(2), atol=1e-6, rtol=0)
        torch.testing.assert_close(x[:, :2].std(0, correction=0), torch.ones(2))
        blocks = x[:, 2:].unique(dim=0)
        assert len(blocks) == 3
        torch.testing.assert_close(torch.pdist(blocks), torch.ones(3))

    @pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
    def test_every_separator_reads_the_same(self, tmp_path, delimiter):
        plain = load_csv(write_csv(tmp_path / "t.csv", table_rows()))
        other = load_csv(write_csv(tmp_path / "u.csv", table_rows(), delimiter=delimiter))
        assert torch.equal(plain.train.inputs, other.train.inputs)

    def test_csv_and_parquet_are_the_same_table(self, tmp_path):
        rows = table_rows()
        a, b, kind, y = zip(*rows, strict=True)
        columns = {"a": list(map(float, a)), "b": list(map(float, b)), "kind": list(kind), "y": list(y)}
        pq.write_table(pa.table(columns), tmp_path / "t.parquet", row_group_size=50)
        one = load_csv(write_csv(tmp_path / "t.csv", rows))
        two = load_csv(tmp_path / "t.parquet")
        assert torch.equal(one.train.inputs, two.train.inputs)
        assert torch.equal(one.test.labels, two.test.labels)
        assert (one.columns, one.classes) == (two.columns, two.classes)

    def test_parquet_types(self, tmp_path):
        n = 60
        columns = {
            "whole": pa.array(range(n), pa.int32()),
            "gaps": pa.array([None if i == 3 else i / 7 for i in range(n)], pa.float32()),
            "yes": pa.array([i % 2 == 0 for i in range(n)]),
            "code": pa.array([str(i % 3) for i in range(n)]).dictionary_encode(),
            "when": pa.array(list(range(n)), pa.timestamp("s")),
            "y": pa.array([i % 2 for i in range(n)], pa.int64()),
        }
        pq.write_table(pa.table(columns), tmp_path / "t.parquet")
        found = load_csv(tmp_path / "t.parquet", numbers=("whole",), categories=("code",))
        assert found.classes == ("0", "1")
        assert [column.categories for column in found.columns] == [(), (), ("False", "True"), ("0", "1", "2"), ()]
        assert [column.dates for column in found.columns] == ["", "", "", "", "iso"]
        assert int(found.train.inputs.isnan().sum() + found.test.inputs.isnan().sum()) == 1

    def test_missing_values_are_named_and_stand_at_the_mean(self, tmp_path, caplog):
        rows = table_rows()
        for i, gap in enumerate(("", "NA", "nan", "?", "null")):
            rows[3 * i][0] = gap
        rows[1][2] = ""
        raw = load_csv(write_csv(tmp_path / "t.csv", rows), test_data=tmp_path / "t.csv")
        ready, done = prepare(raw)
        assert "missing values in 'a' (5), 'kind' (1)" in caplog.text
        assert raw.train.inputs.isnan().sum() == 6
        assert (ready.train.inputs[:, 0] == 0).sum() == 5
        assert torch.equal(ready.train.inputs[:, 1], raw.train.inputs[:, 0].isnan().float())  # the indicator
        assert (ready.train.inputs[:, 3:].abs().sum(1) == 0).sum() == 1
        assert done.column_mean[0] == pytest.approx(float(raw.train.inputs[:, 0].nanmean()))

    def test_numbers_as_labels_sort_by_size_and_a_column_can_turn_out_to_be_text_late(self, tmp_path):
        rows = [[str(i % 5), str(i % 11)] for i in range(9000)]
        rows[8999][0] = "none of these"
        found = load_csv(write_csv(tmp_path / "t.csv", rows, header=("code", "y")))
        assert found.classes == tuple(map(str, range(11)))
        assert found.columns[0].categories == ("0", "1", "2", "3", "4", "none of these")

    def test_numbers_can_be_categories_by_request_and_alone(self, tmp_path):
        rows = [[str(i % 30), str(i % 2)] for i in range(90)]
        ready, done = prepare(load_csv(write_csv(tmp_path / "t.csv", rows, header=("code", "y")), categories=("code",)))
        assert done.columns[0].categories == tuple(map(str, range(30)))
        torch.testing.assert_close(ready.train.inputs.norm(dim=1), torch.full((72,), 0.5**0.5))

    def test_quotes_blank_lines_and_a_byte_order_mark(self, tmp_path):
        lines = ['\ufeff"a, b",y', *(f'{i}.5,"x\ny {i % 2}"' for i in range(20)), "", "  "]
        (tmp_path / "t.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
        found = load_csv(tmp_path / "t.csv")
        assert found.columns == (Column("a, b"),)
        assert found.classes == ("x\ny 0", "x\ny 1")

    def test_a_separate_test_table_may_have_other_columns_in_another_order(self, tmp_path):
        rows = table_rows()
        write_csv(tmp_path / "t.csv", rows)
        turned = [[y, k, "extra", b, a] for a, b, k, y in rows[:30]]
        write_csv(tmp_path / "u.csv", turned, header=("y", "kind", "more", "b", "a"))
        found = load_csv(tmp_path / "t.csv", test_data=tmp_path / "u.csv")
        assert (len(found.train), len(found.test)) == (120, 30)
        assert torch.equal(found.train.inputs[:30], found.test.inputs)

    def test_the_test_part_is_stratified(self, tmp_path):
        rows = [[str(i), "rare" if i % 10 == 0 else "common"] for i in range(200)]
        found = load_csv(write_csv(tmp_path / "t.csv", rows, header=("a", "y")), test_fraction=0.3, numbers=("a",))
        assert torch.bincount(found.test.labels).tolist() == [54, 6]

    def test_a_run_predicts_raw_rows_and_a_moved_column_changes_nothing(self, tmp_path, caplog):
        rows = table_rows(300)
        quick = {"label": "y", "epochs": 20, "phase2_epochs": 1, "batch_size": 16, "width": 16, "device": "cpu"}
        run = lipscale.train(Settings(data=str(write_csv(tmp_path / "t.csv", rows)), out=tmp_path / "r", **quick))
        assert run.metrics.accuracy > 0.8
        loaded = lipscale.load(tmp_path / "r")
        write_csv(tmp_path / "raw.csv", [row[:3] for row in rows[:9]], header=("a", "b", "kind"))
        turned = [[k, b, a] for a, b, k, _ in rows[:9]]
        write_csv(tmp_path / "turned.csv", turned, header=("kind", "b", "a"))
        one, names = read_inputs([tmp_path / "raw.csv"], loaded.preprocessing)
        two, _ = read_inputs([tmp_path / "turned.csv"], loaded.preprocessing)
        assert torch.equal(one, two)
        answers = predict(loaded, one, names)
        assert answers[0].unit == loaded.preprocessing.unit
        assert sum(a.label == row[3] for a, row in zip(answers, rows[:9], strict=True)) >= 6
        head = as_bytes(answers, ".csv").decode().splitlines()[0]
        assert head == "source,label,probability,radius,unit,p_class0,p_class1,p_class2"
        write_csv(tmp_path / "new.csv", [["1", "", "violet"]], header=("a", "b", "kind"))
        read_inputs([tmp_path / "new.csv"], loaded.preprocessing)
        assert "1 values are missing, such as 'b' in row 1" in caplog.text
        (tmp_path / "bad.csv").write_text("a,b,kind\n1,2,red\n1,x,red\n")
        with pytest.raises(UserError, match=r"bad.csv, line 3: column 'b' holds numbers but here 'x'"):
            read_inputs([tmp_path / "bad.csv"], loaded.preprocessing)


class TestPictures:
    @pytest.mark.parametrize("mode", ["L", "LA", "RGB", "RGBA", "P", "1", "CMYK"])
    def test_every_colour_mode(self, tmp_path, mode):
        path = write_picture(tmp_path / ("x.tif" if mode == "CMYK" else "x.png"), mode=mode)
        for channels in (1, 3):
            assert read_picture(path, (channels, 8, 8), fit="crop").shape == (channels, 8, 8)

    def test_fit(self, tmp_path):
        pixels = np.zeros((10, 30), np.uint8)
        pixels[:, 10:20] = 255  # black, white, black
        Image.fromarray(pixels).save(tmp_path / "x.png")
        assert read_picture(tmp_path / "x.png", (1, 10, 10), fit="crop").min() == 255
        stretched = read_picture(tmp_path / "x.png", (1, 10, 10), fit="stretch")
        assert (stretched[0, 5, 0], stretched[0, 5, 5], stretched[0, 5, 9]) == (0, 255, 0)
        padded = read_picture(tmp_path / "x.png", (1, 30, 30), fit="pad")
        assert padded[0, :9].max() == 0
        assert padded[0, 15, 15] == 255

    def test_a_camera_held_upright(self, tmp_path):
        pixels = np.zeros((8, 8, 3), np.uint8)
        pixels[:4] = 255
        exif = Image.Exif()
        exif[0x0112] = 6
        Image.fromarray(pixels).save(tmp_path / "x.jpg", exif=exif, quality=95)
        turned = read_picture(tmp_path / "x.jpg", (1, 8, 8), fit="crop")
        assert turned[0, :, 7].min() > 200
        assert turned[0, :, 0].max() < 50

    def test_a_folder_of_pictures_of_all_kinds_and_sizes(self, tmp_path):
        write_folder(tmp_path / "set", size=(40, 30))
        for i, (mode, suffix) in enumerate([("L", ".jpg"), ("RGBA", ".png"), ("P", ".gif"), ("RGB", ".webp")]):
            write_picture(tmp_path / "set" / "cat" / "more" / f"{i}{suffix}", mode=mode, size=(20 + i, 50))
        (tmp_path / "set" / "cat" / ".DS_Store").write_bytes(b"junk")
        (tmp_path / "set" / "dog" / "notes.txt").write_text("no picture")
        found = read_dataset(str(tmp_path / "set"))
        assert found.classes == ("cat", "dog")
        assert found.train.inputs.shape == (19, 3, 28, 28)  # the median of shorter sides is 30
        assert (len(found.test), found.augmentation) == (5, "crop+flip")
        small = read_dataset(DataSettings(data=str(tmp_path / "set"), image_size=16, image_color="grey"))
        assert small.input_shape == (1, 16, 16)

    def test_small_pictures_of_one_size_stay_as_they_are(self, tmp_path):
        write_folder(tmp_path / "set", mode="L", size=(12, 10))
        found = read_dataset(str(tmp_path / "set"))
        assert found.input_shape == (1, 10, 12)
        with Image.open(tmp_path / "set" / "cat" / "000.png") as picture:
            first = torch.from_numpy(np.array(picture))
        everything = torch.cat((found.train.inputs, found.test.inputs))
        assert any(torch.equal(first, x[0]) for x in everything)

    def test_train_and_test_folders(self, tmp_path):
        write_folder(tmp_path / "set" / "train")
        write_folder(tmp_path / "set" / "val", n=4)
        found = read_dataset(str(tmp_path / "set"))
        assert (len(found.train), len(found.test), found.classes) == (20, 8, ("cat", "dog"))
        other = read_dataset(DataSettings(data=str(tmp_path / "set" / "train"), test_data=tmp_path / "set" / "val"))
        assert torch.equal(found.test.inputs, other.test.inputs)

    def test_what_does_not_fit_in_memory_streams_from_disk_to_the_same_numbers(self, tmp_path, monkeypatch):
        write_folder(tmp_path / "set", n=30)
        monkeypatch.setenv("LIPSCALE_CACHE", str(tmp_path / "cache"))
        settings = Settings(
            data=str(tmp_path / "set"), model="convnet", width=4, epochs=2, phase2_epochs=1, batch_size=16, device="cpu"
        )
        one = lipscale.train(lipscale.replace(settings, out=tmp_path / "a"))
        monkeypatch.setattr("lipscale.data.pictures.available_memory", lambda: 1000)
        stored = read_dataset(str(tmp_path / "set"))
        assert isinstance(stored.train.inputs, Stored)
        two = lipscale.train(lipscale.replace(settings, out=tmp_path / "b"))
        assert (tmp_path / "a" / "model.safetensors").read_bytes() == (
            tmp_path / "b" / "model.safetensors"
        ).read_bytes()
        assert replace(one.metrics, seconds=0) == replace(two.metrics, seconds=0)
        assert os.listdir(tmp_path / "cache") == []  # nothing stays behind, whatever happens

    def test_stored_inputs_index_like_a_tensor(self):
        base = torch.randint(0, 256, (20, 3, 4, 4)).to(torch.uint8)
        on_disk = written(iter(base.numpy()), 20, (3, 4, 4), np.uint8)
        samples = data.Samples(Stored.of(on_disk), torch.arange(20))
        part = samples.take(torch.tensor([3, 1, 19])).join(samples.take(torch.tensor([0])))
        assert torch.equal(part.inputs[torch.arange(4)], base[[3, 1, 19, 0]])
        assert torch.equal(torch.cat(list(part.inputs.split(3))), base[[3, 1, 19, 0]])
        plain = data.Samples(base[[3, 1, 19, 0]], part.labels)
        assert part.digest() == plain.digest()
        kwargs = {"augmentation": "crop+flip", "seed": 0, "stream": ("x",)}
        for (a, _), (b, _) in zip(epoch_batches(part, 2, **kwargs), epoch_batches(plain, 2, **kwargs), strict=True):
            assert torch.equal(a, b)

    def test_a_run_predicts_raw_pictures_as_it_was_trained(self, tmp_path):
        write_folder(tmp_path / "set", size=(40, 30), n=12, suffix=".jpg")
        quick = {"width": 4, "epochs": 1, "phase2_epochs": 0, "model": "convnet", "image_size": 16, "device": "cpu"}
        run = lipscale.train(Settings(data=str(tmp_path / "set"), out=tmp_path / "r", **quick))
        inputs, _ = read_inputs([tmp_path / "set" / "cat" / "000.jpg"], lipscale.load(run.folder).preprocessing)
        found = read_dataset(DataSettings(data=str(tmp_path / "set"), image_size=16))
        everything = data.as_input(torch.cat((found.train.inputs, found.test.inputs)))
        assert any(torch.equal(inputs[0], x) for x in everything)


class TestPublicSets:
    def test_tiny_imagenet_takes_the_validation_part_for_the_test(self, tmp_path):
        write_tiny_imagenet(tmp_path / "tiny-imagenet-200")
        found = read_dataset("tiny-imagenet", tmp_path)
        assert (found.train.inputs.shape, len(found.test)) == ((6, 3, 64, 64), 2)
        assert found.classes == ("name of n01", "name of n02")
        assert found.test.labels.tolist() == [0, 1]

    def test_real_tiny_imagenet(self):
        found = read_dataset("tiny-imagenet", real_folder("tiny-imagenet"))
        assert len(found.classes) == len(set(found.classes)) == 200
        assert len(found.test.labels.unique()) == 200
        assert found.input_shape == (3, 64, 64)

    @pytest.mark.parametrize("dump", [python2_pickle, python3_pickle])
    def test_cifars_python_version(self, tmp_path, dump):
        pixels = write_cifar10_python(tmp_path / "cifar-10-batches-py", dump=dump)
        found = read_dataset("cifar10", tmp_path)
        assert (len(found.train), len(found.test), found.classes[3]) == (100, 20, "c3")
        np.testing.assert_array_equal(found.train.inputs[25].flatten().numpy(), pixels[5])
        assert found.train.labels[25] == 5

    def test_cifar100_python_version(self, tmp_path):
        folder = tmp_path / "cifar-100-python"
        folder.mkdir()
        pixels = np.random.default_rng(0).integers(0, 256, (200, 3072), dtype=np.uint8)
        batch = {"fine_labels": [i % 100 for i in range(200)], "coarse_labels": [0] * 200, "data": pixels}
        for name in ("train", "test"):
            (folder / name).write_bytes(python2_pickle(batch))
        (folder / "meta").write_bytes(python2_pickle({"fine_label_names": [f"f{i}" for i in range(100)]}))
        found = read_dataset("cifar100", tmp_path)
        np.testing.assert_array_equal(found.test.inputs[7].flatten().numpy(), pixels[7])
        assert found.classes[99] == "f99"

    @pytest.mark.parametrize(
        "hostile",
        [
            b"cos\nsystem\n(S'touch {marker}'\ntR.",
            b"\x80\x02cposix\nsystem\nU\x09touch {marker}\x85R.",
            b"\x80\x04\x8c\x05posix\x8c\x06system\x93\x8c\x0etouch {marker}\x85R.",
            b"(S'touch {marker}'\nios\nsystem\n.",
            b"\x80\x02cbuiltins\neval\nU\x021+\x85R.",
            b"\x80\x02c_codecs\nencode\nX\x01\0\0\0aX\x04\0\0\0rot9\x86R.",
            b"\x80\x02cnumpy\nload\nU\x01x\x85R.",
        ],
    )
    def test_a_hostile_pickle_is_refused_and_nothing_runs(self, tmp_path, hostile):
        marker = tmp_path / "marker"
        path = tmp_path / "data_batch_1"
        path.write_bytes(hostile.replace(b"{marker}", str(marker).encode()))
        with pytest.raises(UserError, match="data_batch_1"):
            read_plain_pickle(path)
        assert not marker.exists()

    def test_a_key_that_would_take_forever_to_hash_is_refused(self, tmp_path):
        (tmp_path / "x").write_bytes(b"\x80\x02}(K\1" + b"q\0h\0\x86" * 200 + b"K\1u.")
        with pytest.raises(UserError, match="key"):
            read_plain_pickle(tmp_path / "x")


class TestImbalance:
    def test_balanced_weights_make_classes_count_the_same(self):
        labels = torch.tensor([0] * 90 + [1] * 10)
        weights = class_weights("balanced", labels, 2)
        assert (weights[labels] * (labels == 0)).sum() == pytest.approx(float((weights[labels] * (labels == 1)).sum()))
        assert weights[labels].mean() == pytest.approx(1)
        logits = torch.randn(100, 2)
        found = offset_cross_entropy(logits, labels, weights=weights)
        each = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
        assert found == pytest.approx(float((each[labels == 0].mean() + each[labels == 1].mean()) / 2))

    def test_weights_change_what_a_run_learns(self, tmp_path):
        rng = np.random.default_rng(0)
        rows = [[f"{rng.normal(1.0 * (i % 10 == 0)):.3f}", "rare" if i % 10 == 0 else "common"] for i in range(600)]
        write_csv(tmp_path / "t.csv", rows, header=("a", "y"))
        quick = {"data": str(tmp_path / "t.csv"), "label": "y", "method": "fixed", "lipschitz": 4, "width": 8}
        quick |= {"epochs": 15, "batch_size": 16, "learning_rate": 0.01}
        found = []
        for name, chosen in (("plain", "none"), ("fair", "balanced"), ("own", (1.0, 9.0))):
            run = lipscale.train(Settings(**quick, class_weights=chosen, device="cpu", out=tmp_path / name))
            inputs, names = read_inputs([tmp_path / "t.csv"], run.preprocessing)
            found.append(sum(answer.label == "rare" for answer in predict(run, inputs, names)))
        assert found[0] < 20
        assert found[1] > 120
        assert found[2] > 120
        with pytest.raises(UserError, match="expected 2 numbers, one a class, got 3"):
            lipscale.train(Settings(**quick, class_weights=(1.0, 2.0, 3.0), out=tmp_path / "bad"))

    def test_a_rare_class_is_told_what_it_needs(self):
        samples = data.Samples(torch.rand(103, 4), torch.tensor([0] * 100 + [1] * 3))
        with pytest.raises(UserError, match="3 training samples and needs about 10; .*`calibration_fraction` 0.34"):
            data.split_calibration(samples, 0.1, seed=0, classes=("common", "rare"))
