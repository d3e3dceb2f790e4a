"""Small files that claim or build much, and files that never end: one line within ten seconds and a gigabyte."""

import json
import os
import struct
import subprocess
import sys
import zipfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from makers import write_folder

# reads every data set that it is told of, each within a limit of memory and time, and prints what came of it
READ_ALL = """
import json, resource, signal, sys, time
from pathlib import Path
from lipscale.data import DataSettings, load_dataset, prepare
from lipscale.data.plain_pickle import read_plain_pickle
from lipscale.errors import UserError

def used():
    return int(next(line for line in open("/proc/self/status") if line.startswith("VmData")).split()[1]) * 1024

load_dataset("digits")
found = {}
for name, path, label in json.load(sys.stdin):
    resource.setrlimit(resource.RLIMIT_DATA, (used() + 10**9, resource.RLIM_INFINITY))
    signal.alarm(60)
    start, message = time.process_time(), "no error"
    try:
        if path.endswith("batch"):
            read_plain_pickle(Path(path))
        else:
            prepare(load_dataset(DataSettings(data=path, label=label)))
    except UserError as error:
        message = str(error)
    except Exception as error:
        message = repr(error)
    found[name] = [time.process_time() - start, message]
print(json.dumps(found))
"""


def pickle_of_one_text(path):
    """One text of 20 MB, which 300 arrays take as their content."""
    size = 20_000_000
    text = b"T" + struct.pack("<i", size) + bytes(size) + b"q\x01"
    dtype = b"cnumpy\ndtype\nU\x02u1\x85R"
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\n)R(K\x01J" + struct.pack("<i", size) + b"\x85" + dtype + b"\x89h\x01tb"
    )
    path.write_bytes(b"\x80\x02}(U\x01a" + text + b"U\x01b](" + 300 * array + b"eu.")


def pickle_of_lists(path):
    path.write_bytes(b"\x80\x02" + b"]" * 100_000_000 + b".")


def array_below_zero(path):
    head = b"{'descr': '<f8', 'fortran_order': False, 'shape': (-5, 10)}".ljust(69) + b"\n"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", 70) + head + bytes(10_000_000))
        archive.writestr("y.npy", b"")


def arrays_of_many_classes(path):
    np.savez(path, x=np.zeros((200_000, 1)), y=np.arange(200_000) % 100_000)


def png_of_a_hundred_megapixels(path):
    write_folder(path, n=2)
    Image.new("L", (10_000, 10_000)).save(path / "cat" / "large.png")


def large_pictures(path):
    """They can be read: one after the other."""
    write_folder(path, n=2)
    for i in range(2):
        Image.new("LA", (7000, 7000), 80).save(path / "cat" / f"large{i}.png", compress_level=1)


def long_texts_in_parquet(path):
    texts = pa.DictionaryArray.from_arrays(np.zeros(2400, np.int32), ["x" * 1_000_000])
    columns = {"a": texts, "y": ["p", "q"] * 1200}
    pq.write_table(pa.table(columns), path, compression="zstd")


def long_texts_in_plain_parquet(path):
    columns = {"a": pa.array(["x" * 1_000_000] * 1200), "y": ["p", "q"] * 600}
    pq.write_table(pa.table(columns), path, compression="zstd", use_dictionary=False)


def csv_of_many_columns(path):
    names = [f"a{i}" for i in range(140_000)]
    path.write_text("\n".join([",".join([*names, "y"]), *(",".join(["1"] * 140_000 + [c]) for c in "pqpqpq")]))


def csv_of_the_most_columns(path):
    names = [f"a{i}" for i in range(19_999)]
    rows = (",".join([*(str((i * j) % 7) for j in range(19_999)), "pq"[i % 2]]) for i in range(40))
    path.write_text("\n".join([",".join([*names, "y"]), *rows]))


def folder_with_a_link(path):
    write_folder(path, n=2)
    (path / "everything").symlink_to("/")


def folder_with_a_pipe(path):
    write_folder(path, n=2)
    os.mkfifo(path / "cat" / "pipe.png")


def folder_with_a_device(path):
    write_folder(path, n=2)
    (path / "cat" / "zero.png").symlink_to("/dev/zero")


# name: file, label, what writes it, what the error says
FILES = {
    "one text 300 times": ("batch", None, pickle_of_one_text, "arrays larger than the file"),
    "a hundred million lists": ("batch", None, pickle_of_lists, "more than 2000000 steps"),
    "an array below zero": ("x.npz", None, array_below_zero, "its header says (-5, 10)"),
    "a hundred thousand classes": (
        "x.npz",
        None,
        arrays_of_many_classes,
        "has 100000 classes; give at least 2 and at most 1000",
    ),
    "a hundred megapixels": ("set", None, png_of_a_hundred_megapixels, "claims 10000x10000 pixels"),
    "two large pictures": ("set", None, large_pictures, "no error"),
    "long texts in Parquet": ("t.parquet", "y", long_texts_in_parquet, "a text of 1000000 characters"),
    "long texts in plain Parquet": ("t.parquet", "y", long_texts_in_plain_parquet, "would unpack to 1.2 GB"),
    "many columns": ("t.csv", "y", csv_of_many_columns, "has 140001 columns; give at most 20000"),
    "the most columns": ("t.csv", "y", csv_of_the_most_columns, "no error"),
    "a pipe": ("t.csv", "y", os.mkfifo, "is no regular file"),
    "a pipe of arrays": ("x.npz", None, os.mkfifo, "is no regular file"),
    "a pipe of Parquet": ("t.parquet", "y", os.mkfifo, "is no regular file"),
    "a device": ("t.csv", "y", lambda path: path.symlink_to("/dev/zero"), "is no regular file"),
    "a pipe among pictures": ("set", None, folder_with_a_pipe, "pipe.png is no regular file"),
    "a device among pictures": ("set", None, folder_with_a_device, "zero.png is no regular file"),
    "a class that is a link": ("set", None, folder_with_a_link, "everything is a link to a folder"),
}


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    folder = tmp_path_factory.mktemp("floods")
    cases = []
    for number, (name, (file, label, write, _)) in enumerate(FILES.items()):
        path = folder / str(number) / file
        path.parent.mkdir()
        write(path)
        cases.append((name, str(path), label))
    done = subprocess.run(
        [sys.executable, "-c", READ_ALL], input=json.dumps(cases), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits of memory are Linux's")
@pytest.mark.parametrize("name", FILES)
def test_a_flood_is_refused_in_time_and_memory(answers, name):
    seconds, message = answers[name]
    assert FILES[name][3] in message
    assert len(message.splitlines()) == 1
    assert seconds < 10
