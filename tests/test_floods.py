"""Small files that claim or build much, and files that never end: one line within ten seconds and a gigabyte."""

import json
import struct
import subprocess
import sys

import pytest

# reads every data set that it is told of, each within a limit of memory and time, and prints what came of it
READ_ALL = """
import json, resource, signal, sys, time
from pathlib import Path
from lipscale.data import DataSettings, load_dataset
from lipscale.data.plain_pickle import read_plain_pickle
from lipscale.errors import UserError

def used():
    return int(next(line for line in open("/proc/self/status") if line.startswith("VmData")).split()[1]) * 1024

load_dataset("digits")
found = {}
for name, path, label in json.load(sys.stdin):
    resource.setrlimit(resource.RLIMIT_DATA, (used() + 10**9, resource.RLIM_INFINITY))
    signal.alarm(20)
    start, message = time.monotonic(), "no error"
    try:
        if path.endswith("batch"):
            read_plain_pickle(Path(path))
        else:
            load_dataset(DataSettings(data=path, label=label))
    except UserError as error:
        message = str(error)
    except Exception as error:
        message = repr(error)
    found[name] = [time.monotonic() - start, message]
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


# name: file, label, what writes it, what the error says
FILES = {
    "one text 300 times": ("batch", None, pickle_of_one_text, "arrays larger than the file"),
    "a hundred million lists": ("batch", None, pickle_of_lists, "more than 2000000 instructions"),
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
