"""Readers on real files where present and on tiny ones written here; splits; augmentation."""

import gzip
import struct

import numpy as np
import pytest
import torch

from conftest import real_folder
from lipscale import data
from lipscale._random import random_stream
from lipscale.data.batches import augment, epoch_batches
from lipscale.data.dataset import channel_means
from lipscale.data.idx import read_idx
from lipscale.errors import UserError


def idx_bytes(array):
    return b"\0\0\x08" + bytes([array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write_idx_set(folder, *, compress=False, n=20):
    rng = np.random.default_rng(0)
    contents = {
        "train-images-idx3-ubyte": rng.integers(0, 256, (n, 28, 28), dtype=np.uint8),
        "train-labels-idx1-ubyte": np.arange(n, dtype=np.uint8) % 10,
        "t10k-images-idx3-ubyte": rng.integers(0, 256, (10, 28, 28), dtype=np.uint8),
        "t10k-labels-idx1-ubyte": np.arange(10, dtype=np.uint8),
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in contents.items():
        raw = idx_bytes(array)
        (folder / (name + ".gz" * compress)).write_bytes(gzip.compress(raw) if compress else raw)
    return contents


def write_cifar100(folder, *, n=200):
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True)
    for name in ("train.bin", "test.bin"):
        rows = rng.integers(0, 256, (n, 3074), dtype=np.uint8)
        rows[:, 0], rows[:, 1] = 7, np.arange(n) % 100
        (folder / name).write_bytes(rows.tobytes())
    (folder / "fine_label_names.txt").write_text("\n".join(f"c{i}" for i in range(100)))
    return rows


def write_cifar10(folder):
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True)
    rows = rng.integers(0, 256, (20, 3073), dtype=np.uint8)
    rows[:, 0] = np.arange(20) % 10
    for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
        (folder / f"{name}.bin").write_bytes(rows.tobytes())
    (folder / "batches.meta.txt").write_text("\n".join("abcdefghij") + "\n\n")
    return rows


class TestReaders:
    def test_digits_are_embedded_with_a_fixed_test_part(self):
        one, two = data.read_dataset("digits"), data.read_dataset("digits")
        assert (len(one.train), len(one.test)) == (1437, 360)
        assert torch.equal(one.test.inputs, two.test.inputs)
        assert (float(one.train.inputs.min()), float(one.train.inputs.max())) == (0, 1)
        rows = {tuple(r) for r in one.train.inputs.flatten(1).tolist()}
        assert not any(tuple(r) in rows for r in one.test.inputs.flatten(1).tolist())

    @pytest.mark.parametrize("compress", [False, True])
    @pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
    def test_idx_files_plain_and_gzipped(self, tmp_path, name, compress):
        contents = write_idx_set(tmp_path / name, compress=compress)
        found = data.read_dataset(name, tmp_path)
        assert found.train.inputs.shape == (20, 1, 28, 28)
        np.testing.assert_array_equal(found.train.inputs[:, 0].numpy(), contents["train-images-idx3-ubyte"])
        np.testing.assert_array_equal(found.test.labels.numpy(), contents["t10k-labels-idx1-ubyte"])
        assert len(found.classes) == 10

    def test_cifar10_joins_its_five_batches(self, tmp_path):
        rows = write_cifar10(tmp_path / "cifar-10-batches-bin")
        found = data.read_dataset("cifar10", tmp_path)
        assert (len(found.train), len(found.test), found.classes[9]) == (100, 20, "j")
        np.testing.assert_array_equal(found.train.inputs[25].flatten().numpy(), rows[5, 1:])  # red plane first
        assert found.train.labels[25] == 5
        assert found.augmentation == "crop+flip"

    def test_cifar100_takes_the_fine_label(self, tmp_path):
        rows = write_cifar100(tmp_path / "cifar-100-binary")
        found = data.read_dataset("cifar100", tmp_path)
        assert found.test.labels.tolist() == (np.arange(200) % 100).tolist()
        np.testing.assert_array_equal(found.test.inputs[5].flatten().numpy(), rows[5, 2:])
        assert found.classes[3] == "c3"

    def test_real_fashion_mnist(self):
        found = data.read_dataset("fashion-mnist", real_folder("fashion-mnist"))
        assert (len(found.train), len(found.test)) == (60000, 10000)
        assert torch.bincount(found.train.labels).tolist() == [6000] * 10
        mean = channel_means(found.train)[0]
        assert mean == pytest.approx(0.2860, abs=1e-4)  # the figure everybody normalises with

    def test_real_cifar10(self):
        found = data.read_dataset("cifar10", real_folder("cifar10"))
        assert (len(found.train), len(found.test)) == (50000, 10000)
        assert found.classes[0] == "airplane"
        assert found.test.labels[:5].tolist() == [3, 8, 8, 0, 6]
        assert channel_means(found.train) == pytest.approx((0.4914, 0.4822, 0.4465), abs=1e-4)

    def test_real_cifar100(self):
        found = data.read_dataset("cifar100", real_folder("cifar100"))
        assert len(found.classes) == 100
        assert found.train.inputs.shape[1:] == (3, 32, 32)
        assert len(found.train.labels.unique()) == 100

    def test_the_environment_and_the_flag_are_searched(self, tmp_path, monkeypatch):
        write_idx_set(tmp_path / "a" / "mnist")
        monkeypatch.setenv("LIPSCALE_DATA", str(tmp_path / "a"))
        assert data.find_folder("mnist") == tmp_path / "a" / "mnist"
        assert data.find_folder("mnist", tmp_path / "elsewhere") == tmp_path / "a" / "mnist"  # it adds to the usual
        assert data.find_folder("mnist", tmp_path / "a" / "mnist") == tmp_path / "a" / "mnist"

    def test_a_folder_of_another_set_is_not_taken_for_this_one(self, tmp_path):
        write_idx_set(tmp_path / "fashion-mnist")
        assert data.find_folder("fashion-mnist", tmp_path / "fashion-mnist") is not None
        assert data.registry.find_below("mnist", tmp_path / "fashion-mnist") is None

    def test_a_column_with_a_large_offset_survives(self, tmp_path):
        y = np.arange(40) % 2
        np.savez(tmp_path / "t.npz", x=1.7e9 + 20.0 * y[:, None], y=y)
        table, _ = data.prepare(data.read_dataset(str(tmp_path / "t.npz")))
        assert table.train.inputs.abs().min() > 0.9

    def test_npz_images_and_tables(self, tmp_path):
        rng = np.random.default_rng(0)
        y = np.arange(50) % 3
        np.savez(tmp_path / "images.npz", x=rng.integers(0, 256, (50, 3, 8, 8), dtype=np.uint8), y=y)
        images = data.load_dataset(str(tmp_path / "images.npz"))
        assert (len(images.train), len(images.test), images.train.inputs.dtype) == (40, 10, torch.float32)
        kept = data.read_dataset(str(tmp_path / "images.npz"))  # bytes, as a training keeps them
        assert kept.train.inputs.dtype == torch.uint8
        assert torch.equal(images.train.inputs, kept.train.inputs.float() / 255)
        np.savez(
            tmp_path / "table.npz",
            x=rng.normal(5, 3, (50, 4)),
            y=y,
            x_test=rng.normal(size=(6, 4)),
            y_test=y[:6],
        )
        table, done = data.prepare(data.read_dataset(str(tmp_path / "table.npz")))
        assert done.unit == "standard deviations, in feature space"
        torch.testing.assert_close(table.train.inputs.mean(0), torch.zeros(4), atol=1e-6, rtol=0)
        torch.testing.assert_close(table.train.inputs.std(0, correction=0), torch.ones(4))
        assert len(table.test) == 6


def npz(folder, **arrays):
    path = folder / "bad.npz"
    np.savez(path, **arrays)
    return str(path)


X, Y = np.random.default_rng(0).random((20, 1, 4, 4)), np.arange(20) % 2


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": X}, "expected x and y"),
        ({"x": X, "y": np.zeros(20, int)}, "1 class"),
        ({"x": X, "y": np.zeros(20, int), "classes": np.array(["a", "b"])}, "one class"),
        ({"x": X, "y": Y - 1}, "label -1 of sample 0"),
        ({"x": X, "y": Y, "x_test": X, "y_test": Y + 5}, "label 5 of sample 0 is not in 0..1"),
        ({"x": np.zeros((20, 8, 8, 3)), "y": Y}, "channels come first"),
        ({"x": X, "y": Y * 2}, "without gaps; 1 does not occur"),
        ({"x": X, "y": Y[:-1]}, "bad.npz has 20 inputs but 19 labels"),
        ({"x": X, "y": Y.astype(float)}, "whole-number labels"),
        ({"x": np.where(X > 0.99, np.nan, X), "y": Y}, "NaN or infinite"),
        ({"x": np.where(X > 0.99, np.inf, X), "y": Y}, "NaN or infinite"),
        ({"x": X * 255, "y": Y}, r"bytes or numbers in \[0, 1\]"),
        ({"x": X[:0], "y": Y[:0]}, "empty"),
        ({"x": X, "y": Y, "x_test": X}, "both or none"),
        ({"x": X, "y": Y, "x_test": X[:, :, :3], "y_test": Y}, "test inputs"),
        ({"x": np.array([{}] * 20, dtype=object), "y": Y}, "plain arrays"),
    ],
)
def test_bad_arrays_are_named(tmp_path, arrays, message):
    with pytest.raises(UserError, match=message):
        data.read_dataset(npz(tmp_path, **arrays))


def test_bad_files_and_names_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr("lipscale.data.registry.SYSTEM_FOLDERS", ())  # whatever this machine has
    monkeypatch.delenv("LIPSCALE_DATA", raising=False)
    with pytest.raises(UserError, match=r"did you mean 'cifar10'\?"):
        data.read_dataset("cifra10")
    with pytest.raises(UserError, match="apt-get install dataset-fashion-mnist"):
        data.read_dataset("fashion-mnist", tmp_path)
    junk = tmp_path / "junk.npz"
    junk.write_bytes(b"PK\x03\x04 not really")
    with pytest.raises(UserError, match="junk.npz"):
        data.read_dataset(str(junk))
    good = idx_bytes(np.zeros((3, 2), np.uint8))
    for name, raw in {
        "cut": good[:-1],
        "head": good[:6],
        "kind": b"\0\0\x0d" + good[3:],
        "empty": b"",
    }.items():
        (tmp_path / name).write_bytes(raw)
        with pytest.raises(UserError, match=name):
            read_idx(tmp_path / name)
    (tmp_path / "cut.gz").write_bytes(gzip.compress(good)[:-9])
    with pytest.raises(UserError, match="cut.gz"):
        read_idx(tmp_path / "cut.gz")
    write_cifar100(tmp_path / "cifar-100-binary")
    with (tmp_path / "cifar-100-binary" / "train.bin").open("ab") as file:
        file.write(b"x")
    with pytest.raises(UserError, match=r"train.bin is truncated"):
        data.read_dataset("cifar100", tmp_path)


class TestSplits:
    def test_a_split_is_a_partition_in_proportion(self):
        labels = torch.tensor([0] * 700 + [1] * 200 + [2] * 100)[torch.randperm(1000)]
        chosen, rest = data.stratified(labels, 100, seed=3, stream="test")
        assert torch.equal(torch.cat((chosen, rest)).sort().values, torch.arange(1000))
        assert torch.bincount(labels[chosen]).tolist() == [70, 20, 10]

    def test_rounding_adds_up(self):
        labels = torch.arange(1437) % 10
        chosen, _ = data.stratified(labels, 144, seed=0, stream="x")
        assert len(chosen) == 144
        assert torch.bincount(labels[chosen]).min() >= 14

    def test_the_seed_and_only_the_seed_decides(self):
        labels = torch.arange(100) % 4
        first = data.stratified(labels, 20, seed=0, stream="x")[0]
        torch.manual_seed(123)
        assert torch.equal(first, data.stratified(labels, 20, seed=0, stream="x")[0])
        assert not torch.equal(first, data.stratified(labels, 20, seed=1, stream="x")[0])

    def test_limit_keeps_the_test_part(self):
        digits = data.read_dataset("digits")
        small = data.limit(digits, 100, seed=0)
        assert (len(small.train), len(small.test)) == (100, 360)
        for count in (5, 5000):
            with pytest.raises(UserError, match=f"got {count}"):
                data.limit(digits, count, seed=0)

    def test_a_class_without_calibration_sample_is_named(self):
        samples = data.Samples(torch.rand(103, 4), torch.tensor([0] * 100 + [1] * 3))
        with pytest.raises(UserError, match="class 'rare' has no calibration sample"):
            data.split_calibration(samples, 0.1, seed=0, classes=("common", "rare"))


class TestBatches:
    samples = data.Samples(torch.arange(103 * 3 * 8 * 8).reshape(103, 3, 8, 8).to(torch.uint8), torch.arange(103))

    def batches(self, **kwargs):
        settings = {"augmentation": "none", "seed": 0, "stream": ("train", 1, 1)} | kwargs
        return list(epoch_batches(self.samples, 25, **settings))

    def test_every_sample_comes_once_in_batches_of_equal_size(self):
        found = self.batches()
        assert sorted(torch.cat([y for _, y in found]).tolist()) == list(range(103))
        sizes = [len(y) for _, y in found]
        assert max(sizes) <= 25
        assert max(sizes) - min(sizes) <= 1
        x, y = found[0]
        torch.testing.assert_close(x, self.samples.inputs[y].float() / 255)

    def test_epochs_differ_and_repeat_exactly(self):
        one, again, other = self.batches(), self.batches(), self.batches(stream=("train", 1, 2))
        assert torch.equal(one[0][1], again[0][1])
        assert not torch.equal(one[0][1], other[0][1])

    def test_a_crop_is_a_crop_of_the_image_padded_by_its_reflection(self):
        images = torch.randint(0, 256, (200, 2, 8, 6)).to(torch.uint8)
        nobody = torch.zeros(200, dtype=torch.bool)
        cropped = augment(images, "crop", crop=2, mirrored=nobody, generator=random_stream(0, "crop"))
        padded = torch.nn.functional.pad(images.float(), [2] * 4, mode="reflect").to(torch.uint8)
        windows = padded.unfold(2, 8, 1).unfold(3, 6, 1)  # (B, C, 5, 5, 8, 6)
        found = (windows == cropped[:, :, None, None]).all(-1).all(-1).all(1)  # (B, 5, 5)
        assert found.any(-1).any(-1).all()
        assert found.any(0).all()  # every shift occurs

    @pytest.mark.parametrize(("kind", "grey"), [("bytes", 128), ("floats", 0.5)])
    def test_a_square_of_every_image_is_blanked_wherever_its_centre_falls(self, kind, grey):
        inputs = torch.full((400, 2, 8, 6), 200, dtype=torch.uint8)
        inputs = inputs if kind == "bytes" else inputs.float() / 255
        samples = data.Samples(inputs, torch.zeros(400, dtype=torch.long))
        options = {"augmentation": "none", "cutout": 3, "seed": 0, "stream": ("train", 1, 1)}
        (images, _), (again, _) = (next(epoch_batches(samples, 400, **options)) for _ in range(2))
        assert torch.equal(images, again)
        blank = images != 200 / 255
        assert (images[blank] == (grey / 255 if kind == "bytes" else grey)).all()
        assert torch.equal(blank[:, 0], blank[:, 1])
        rows, columns = blank[:, 0].any(2), blank[:, 0].any(1)
        assert torch.equal(blank[:, 0], rows[:, :, None] & columns[:, None])  # a rectangle, cut at the border
        for lines in (rows, columns):
            assert set(lines.sum(1).tolist()) == {2, 3}
            assert set(lines.int().argmax(1).tolist()) == set(range(lines.shape[1] - 1))
        assert not (next(epoch_batches(samples, 400, **(options | {"cutout": 0})))[0] != 200 / 255).any()

    def test_jitter_changes_contrast_about_the_mean_and_brightness_and_nothing_else(self):
        inputs = 0.4 + 0.2 * torch.rand(500, 3, 4, 6)  # so that nothing is clipped
        samples = data.Samples(inputs, torch.arange(500))
        options = {"augmentation": "none", "seed": 0, "stream": ("train", 1, 1)}
        images, labels = next(epoch_batches(samples, 500, jitter=0.2, **options))
        again, _ = next(epoch_batches(samples, 500, jitter=0.2, **options))
        assert torch.equal(images, again)
        before, after = inputs[labels].double().flatten(1), images.double().flatten(1)
        contrast = after.std(1) / before.std(1)
        brightness = after.mean(1) - before.mean(1)
        made = contrast[:, None] * (before - before.mean(1, True)) + before.mean(1, True) + brightness[:, None]
        torch.testing.assert_close(after, made, atol=1e-6, rtol=0)  # one line through all pixels of an image
        for found, centre, reach in ((contrast, 1, 0.2), (brightness, 0, 0.1)):
            assert (found - centre).abs().max() <= reach + 1e-5
            assert found.max() > centre + 0.9 * reach
            assert found.min() < centre - 0.9 * reach
        assert abs(torch.corrcoef(torch.stack((contrast, brightness)))[0, 1]) < 0.2

    def test_jitter_keeps_pixels_in_their_range(self):
        samples = data.Samples(torch.randint(0, 256, (64, 1, 4, 4)).to(torch.uint8), torch.zeros(64))
        images, _ = next(epoch_batches(samples, 64, augmentation="none", jitter=1.0, seed=0, stream=("train", 1, 1)))
        assert images.min() == 0
        assert images.max() == 1

    def test_a_crop_of_a_single_row_stays(self):
        images, nobody = torch.rand(4, 1, 1, 30), torch.zeros(4, dtype=torch.bool)
        cropped = augment(images, "crop", crop=2, mirrored=nobody, generator=random_stream(0, "crop"))
        assert torch.equal(cropped, images)

    def test_images_are_mirrored_in_every_other_epoch(self):
        def by_label(epoch):
            batches = self.batches(augmentation="flip", stream=("train", 1, epoch))
            return {int(y): x for xs, ys in batches for x, y in zip(xs, ys, strict=True)}

        one, two, three = map(by_label, (1, 2, 3))
        assert all(torch.equal(one[k], two[k].flip(-1)) and torch.equal(one[k], three[k]) for k in one)
        as_it_is = [torch.equal(one[k], self.samples.inputs[k].float() / 255) for k in one]
        assert 30 < sum(as_it_is) < 73

    def test_a_flip_mirrors_those_it_is_told_to(self):
        images, chosen = torch.rand(400, 1, 4, 4), torch.rand(400) < 0.5
        flipped = augment(images, "flip", crop=0, mirrored=chosen, generator=random_stream(0, "flip"))
        mirrored = (flipped == images.flip(-1)).flatten(1).all(1)
        same = (flipped == images).flatten(1).all(1)
        assert torch.equal(mirrored, chosen)
        assert (mirrored ^ same).all()
