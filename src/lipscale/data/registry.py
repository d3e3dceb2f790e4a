"""What is known of every named set, in one place: its reader, its files, and where to get them.

A new set is a function from a folder to a Dataset and an entry in READERS.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from lipscale.data import cifar, digits, idx, tiny_imagenet
from lipscale.data.dataset import Dataset

ENVIRONMENT = "LIPSCALE_DATA"
DOWNLOADS = "~/.local/share/lipscale"  # where `lipscale data get` puts things
SYSTEM_FOLDERS = ("/usr/share/datasets", DOWNLOADS, "data")


@dataclass(frozen=True)
class KnownSet:
    """A named set."""

    read: Callable[[Path], Dataset]
    about: str
    layouts: tuple[tuple[str, tuple[str, ...]], ...] = ()  # usual folders below a data folder, and what must be in them
    get: str = ""  # what to tell people who do not have it
    places: tuple[str, ...] = ()  # addresses of its files: the first layout, or an archive of it
    files: Mapping[str, str] = field(default_factory=dict)  # and the SHA-256 of each


CIFAR = ("https://www.cs.toronto.edu/~kriz/",)
# Each SHA-256 is in public use for the same file as an MD5 sum that is published for it: on the set's own page (CIFAR,
# Fashion-MNIST), in torchvision (MNIST), in many loaders (Tiny-ImageNet, which has no official one).
READERS = {
    "digits": KnownSet(digits.read, "1,797 handwritten digits, 8x8, 10 classes; embedded"),
    "mnist": KnownSet(
        idx.read_mnist,
        "70,000 handwritten digits, 28x28, 10 classes",
        (("mnist", idx.FILES),),
        "'lipscale data get mnist'",
        ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/"),
        {
            "train-images-idx3-ubyte.gz": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            "train-labels-idx1-ubyte.gz": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            "t10k-images-idx3-ubyte.gz": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            "t10k-labels-idx1-ubyte.gz": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        },
    ),
    "fashion-mnist": KnownSet(
        idx.read_fashion_mnist,
        "70,000 pictures of clothes, 28x28, 10 classes",
        (("fashion-mnist", idx.FILES),),
        "'lipscale data get fashion-mnist', 'apt-get install dataset-fashion-mnist' on Debian",
        (
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
            "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
        ),
        {
            "train-images-idx3-ubyte.gz": "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
            "train-labels-idx1-ubyte.gz": "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
            "t10k-images-idx3-ubyte.gz": "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
            "t10k-labels-idx1-ubyte.gz": "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
        },
    ),
    "cifar10": KnownSet(
        cifar.read_cifar10,
        "60,000 photographs, 32x32, 10 classes",
        (
            ("cifar-10-batches-bin", (*(f"{name}.bin" for name in cifar.CIFAR10), "batches.meta.txt")),
            ("cifar-10-batches-py", (*cifar.CIFAR10, "batches.meta")),
        ),
        "'lipscale data get cifar10'",
        CIFAR,
        {"cifar-10-binary.tar.gz": "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"},
    ),
    "cifar100": KnownSet(
        cifar.read_cifar100,
        "60,000 photographs, 32x32, 100 classes",
        (
            ("cifar-100-binary", ("train.bin", "test.bin", "fine_label_names.txt")),
            ("cifar-100-python", ("train", "test", "meta")),
        ),
        "'lipscale data get cifar100'",
        CIFAR,
        {"cifar-100-binary.tar.gz": "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec"},
    ),
    "tiny-imagenet": KnownSet(
        tiny_imagenet.read,
        "110,000 photographs, 64x64, 200 classes; the validation part is the test set",
        (("tiny-imagenet-200", ("wnids.txt", "words.txt", "val/val_annotations.txt")),),
        "'lipscale data get tiny-imagenet'",
        ("http://cs231n.stanford.edu/",),
        {"tiny-imagenet-200.zip": "6198c8ae015e2b3e007c7841da39ec069199b9aa3bfa943a462022fe5e43c821"},
    ),
}


def find_folder(name: str, data_dir: Path | None = None) -> Path | None:
    """Where a named set's files are: in `data_dir`, or else in one of the usual folders; None if nowhere."""
    places = (found for base in data_folders(data_dir) if (found := find_below(name, base)) is not None)
    return next(places, None)


def find_below(name: str, base: Path) -> Path | None:
    """Where a named set's files are in one data folder: in itself, or in the set's usual folder below it."""
    known = READERS[name]
    if not known.layouts:
        return Path()
    mine = {folder for folder, _ in known.layouts}
    others = {folder for other in READERS.values() for folder, _ in other.layouts} - mine
    for folder, files in known.layouts:
        # the base itself will do, but not where it is another set's: MNIST and Fashion-MNIST have the same file names
        for candidate in (base / folder, *([base] if base.name not in others else [])):
            if holds(candidate, files):
                return candidate
    return None


def data_folders(data_dir: Path | None) -> list[Path]:
    """The folders in which named sets are searched: first the one that was asked for, $LIPSCALE_DATA, the system's."""
    named = [str(folder) for folder in (data_dir, os.environ.get(ENVIRONMENT)) if folder]
    return [Path(folder).expanduser() for folder in (*named, *SYSTEM_FOLDERS)]


def holds(folder: Path, files: tuple[str, ...]) -> bool:
    """Whether a folder has all of these files, plain or gzipped."""
    return all(idx.find(folder, file).is_file() for file in files)
