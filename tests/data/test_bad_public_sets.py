"""Files of public sets that are damaged, cut off or hostile."""

import gzip
import pickle
import struct

import numpy as np
import pytest
from test_bad_pictures import encoded

from lipscale.data import load_dataset
from lipscale.data.idx import read_idx
from lipscale.data.plain_pickle import read_plain_pickle
from lipscale.errors import UserError
from makers import (
    python2_pickle,
    refuses,
    write_cifar10_python,
    write_tiny_imagenet,
)


def idx(*sizes, kind=8, body=None, dimensions=None):
    head = bytes([0, 0, kind, len(sizes) if dimensions is None else dimensions])
    return head + struct.pack(f">{len(sizes)}I", *sizes) + (bytes(int(np.prod(sizes))) if body is None else body)


IDX = {
    "nothing": (b"", "no idx file"),
    "three bytes": (b"\0\0\x08", "no idx file"),
    "no sizes": (b"\0\0\x08\x03", "as an idx file .*requires a buffer of 12 bytes"),
    "half the sizes": (b"\0\0\x08\x03\0\0\0\1\0\0", "as an idx file .*requires a buffer of 12 bytes"),
    "floats": (idx(3, kind=0x0D), "no idx file of bytes"),
    "no magic": (b"\1\2" + idx(3)[2:], "no idx file"),
    "no dimensions": (idx(dimensions=0, body=b"x"), "no idx file"),
    "two hundred dimensions": (idx(3, dimensions=200), "no idx file"),
    "nothing of something vast": (idx(0, 0x7FFFFFFF, 0x7FFFFFFF, body=b""), "is empty"),
    "too short": (idx(3, 4, body=bytes(11)), "truncated or too long: 11 bytes, by its header"),
    "too long": (idx(3, 4, body=bytes(13)), "more bytes, by its header"),
    "a header of sixteen exabytes": (idx(2**32 - 1, 2**32 - 1, body=b"x"), "would take more than 10,000 GB"),
    "a header of a terabyte": (idx(10**6, 10**6, body=b"x"), "would take 1e.03 GB"),
    "a picture": (encoded(), "no idx file"),
}


@pytest.mark.parametrize("name", IDX)
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_idx(tmp_path, name, suffix):
    content, match = IDX[name]
    (tmp_path / f"bad{suffix}").write_bytes(gzip.compress(content) if suffix else content)
    refuses(lambda: read_idx(tmp_path / f"bad{suffix}"), match, f"bad{suffix}")


@pytest.mark.parametrize(
    "content",
    [gzip.compress(idx(3, 4))[:-9], b"no gzip", b"", b"\x1f\x8b\x08" + bytes(20), gzip.compress(idx(3, 4)) + b"junk"],
    ids=["cut off", "text", "nothing", "a header only", "junk behind"],  # the bytes hold the time of day
)
def test_gzip(tmp_path, content):
    (tmp_path / "bad.gz").write_bytes(content)
    refuses(lambda: read_idx(tmp_path / "bad.gz"), "cannot read|no idx|truncated", "bad.gz")


def test_a_gzip_bomb_stays_shut(tmp_path):
    (tmp_path / "bomb.gz").write_bytes(gzip.compress(idx(3, 4) + bytes(50_000_000)))
    refuses(lambda: read_idx(tmp_path / "bomb.gz"), "more bytes, by its header")


CIFAR = {
    "data_batch_2.bin": [(b"", "truncated"), (bytes(3072), "truncated: 3072 bytes are not a multiple of 3073")],
    "test_batch.bin": [(b"\xff" + bytes(3072), "label 255 of sample 0 is not in 0..9")],
    "batches.meta.txt": [
        (b"\xff\xfe\xfa", "cannot read .*batches.meta.txt as class names"),
        (b"only one", "label 9|label 2|not in 0..1"),
    ],
}


@pytest.mark.parametrize(("file", "content", "match"), [(f, c, m) for f, cases in CIFAR.items() for c, m in cases])
def test_cifar_binary(tmp_path, file, content, match):
    from test_data import write_cifar10

    write_cifar10(tmp_path / "cifar-10-batches-bin")
    (tmp_path / "cifar-10-batches-bin" / file).write_bytes(content)
    with pytest.raises(UserError, match=match):
        load_dataset("cifar10", tmp_path)


PIXELS = np.zeros((4, 3072), np.uint8)
BATCH = python2_pickle({"labels": [0, 1, 2, 3], "data": PIXELS})
PICKLES = {
    "nothing": (b"", "as a pickle of plain data"),
    "text": (b"hello", "pickle|plain data"),
    "cut off": (BATCH[:-100], "as a pickle of plain data"),
    "cut off early": (BATCH[:30], "as a pickle of plain data"),
    "a list": (pickle.dumps([1, 2], 2), "no dictionary"),
    "a number": (pickle.dumps(1, 2), "no dictionary"),
    "no data": (python2_pickle({"labels": [0, 1]}), "expected 'data'"),
    "no labels": (python2_pickle({"data": PIXELS}), "expected 'labels'"),
    "labels that are texts": (python2_pickle({"labels": ["a"] * 4, "data": PIXELS}), "whole numbers"),
    "labels that are booleans": (pickle.dumps({"labels": [True] * 4, "data": "x"}, 2), "expected 'data'"),
    "too few labels": (python2_pickle({"labels": [0, 1], "data": PIXELS}), "expected 'labels' as 4 whole numbers"),
    "labels out of range": (python2_pickle({"labels": [0, 1, 2, 250], "data": PIXELS}), "whole numbers in 0..99"),
    "rows of another length": (python2_pickle({"labels": [0] * 4, "data": PIXELS[:, :100]}), "rows of 3072 bytes"),
    "an array that claims more than it has": (
        BATCH.replace(struct.pack("<i", 4) + b"J", struct.pack("<i", 2**31 - 1) + b"J", 1),
        "as a pickle",
    ),
    "an array with a negative size": (
        BATCH.replace(struct.pack("<i", 4) + b"J", struct.pack("<i", -4) + b"J", 1),
        "odd shape",
    ),
    "objects": (BATCH.replace(b"U\x02u1", b"U\x02O8"), "a call of dtype"),
    "numbers": (BATCH.replace(b"U\x02u1", b"U\x02i8"), "a call of dtype"),
    "os.system": (b"\x80\x02}(U\x04datacos\nsystem\nU\x02id\x85Ru.", "a call of os system"),
    "eval": (b"\x80\x02}(U\x04datac__builtin__\neval\nU\x02id\x85Ru.", "a call of __builtin__ eval"),
    "a persistent object": (b"\x80\x02U\x01xQ.", "plain data .*an instruction that"),
    "an extension": (b"\x80\x02\x82\x01.", "plain data .*an instruction that"),
    "a new object": (b"\x80\x02cos\nPopen\n)\x81.", "a call of os Popen"),
    "a memo that is not there": (b"\x80\x02h\x07.", "plain data .*Memo value not found"),
    "a memo of gigabytes": (b"\x80\x02}r\xff\xff\xff\x7f.", "expected 'data'"),
    "too many instructions": (b"\x80\x02}(" + b"]" * 2_100_000 + b"u.", "more than 2000000 steps"),
    "an empty stack": (b"\x80\x02e.", "as a pickle"),
    "floats": (pickle.dumps({"data": 0.5}, 2), "plain data .*an instruction that"),
    "a set": (pickle.dumps({"data": {1}}, 2), "a call of __builtin__ set"),
    "protocol 5": (pickle.dumps({"data": [1]}, 5), "plain data .*an instruction that"),
    "a billion digits": (b"\x80\x02}U\x01aI" + b"9" * 5000 + b"\ns.", "as a pickle"),
}


@pytest.mark.parametrize("name", PICKLES)
def test_cifar_python(tmp_path, name):
    content, match = PICKLES[name]
    folder = tmp_path / "cifar-10-batches-py"
    write_cifar10_python(folder)
    (folder / "data_batch_3").write_bytes(content)
    refuses(lambda: load_dataset("cifar10", tmp_path), match, "data_batch_3")


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (python2_pickle({"names": ["a"]}), "expected 'label_names'"),
        (python2_pickle({"label_names": [1, 2]}), "expected 'label_names' as a list of names"),
        (python2_pickle({"label_names": []}), "expected 'label_names'"),
        (b"junk", "batches.meta"),
    ],
)
def test_cifar_python_names(tmp_path, content, match):
    write_cifar10_python(tmp_path / "cifar-10-batches-py")
    (tmp_path / "cifar-10-batches-py" / "batches.meta").write_bytes(content)
    refuses(lambda: load_dataset("cifar10", tmp_path), match, "batches.meta")


def test_a_pickle_that_is_too_large(tmp_path):
    with (tmp_path / "big").open("wb") as file:
        file.truncate(200_000_001)
    refuses(lambda: read_plain_pickle(tmp_path / "big"), "larger than the 200 MB", "big")


TINY = {
    "no classes": ("wnids.txt", "", "wnids.txt is empty"),
    "a class twice": ("wnids.txt", "n01\nn01\n", "names a class twice"),
    "a class without pictures": ("wnids.txt", "n01\nn02\nn03\n", "n03.*holds no .JPEG"),
    "no UTF-8": ("wnids.txt", b"\xff\xff", "cannot read"),
    "a class misspelt": (
        "val/val_annotations.txt",
        "val_0.JPEG\tn0l\t0\n",
        "line 1: unknown class 'n0l'; did you mean 'n0",
    ),
    "another class": (
        "val/val_annotations.txt",
        "val_0.JPEG\tn01\nval_1.JPEG\tzebra\n",
        "line 2: unknown class 'zebra'",
    ),
    "no class": ("val/val_annotations.txt", "val_0.JPEG\n", "line 1: unknown class ''"),
    "no lines": ("val/val_annotations.txt", "\n\n", "val_annotations.txt is empty"),
    "a path": ("val/val_annotations.txt", "../../secret.JPEG\tn01\n", "line 1: '../../secret.JPEG' is no plain file"),
    "a parent": ("val/val_annotations.txt", "..\tn01\n", "is no plain file name"),
    "a picture that is not there": ("val/val_annotations.txt", "val_9.JPEG\tn01\n", "val_9.JPEG"),
    "a picture that is none": ("val/images/val_0.JPEG", "hello", "val_0.JPEG as a picture"),
    "no words": ("words.txt", "", "words.txt is empty"),
}


@pytest.mark.parametrize("name", TINY)
def test_tiny_imagenet(tmp_path, name):
    folder = write_tiny_imagenet(tmp_path / "tiny-imagenet-200")
    file, content, match = TINY[name]
    (folder / file).write_bytes(content if isinstance(content, bytes) else content.encode())
    refuses(lambda: load_dataset("tiny-imagenet", tmp_path), match)
