"""The public sets from their official places: what arrives is checked, what breaks off is continued."""

import hashlib
import http.client
import os
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from lipscale.data.unpack import Limits, unpack
from lipscale.errors import UserError
from lipscale.runs.lock import locked

TIMEOUT = 30  # seconds without a byte
ATTEMPTS = 6
PAUSE = 1.0  # seconds before the first retry, doubled each time
BLOCK = 1 << 18

Progress = Callable[[str, int, int | None], None]  # file name, bytes so far, bytes in all where the server says


@dataclass(frozen=True)
class File:
    """A file that the public knows by its SHA-256."""

    name: str
    sha256: str
    most: int  # bytes; a server that sends more is cut off


@dataclass(frozen=True)
class Download:
    """A set's files, where they are, and the folder that they end up in."""

    folder: str
    places: tuple[str, ...]  # the first that answers will do
    files: tuple[File, ...]
    limits: Limits | None = None  # of an archive to unpack; none: the files are used as they are


MB = 1_000_000
CIFAR = ("https://www.cs.toronto.edu/~kriz/",)
# Each SHA-256 is in public use for the same file as an MD5 sum that is published for it: on the set's own page (CIFAR,
# Fashion-MNIST), in torchvision (MNIST), in many loaders (Tiny-ImageNet, which has no official one).
DOWNLOADS = {
    "mnist": Download(
        "mnist",
        ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/"),
        (
            File(
                "train-images-idx3-ubyte.gz",
                "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
                20 * MB,
            ),
            File("train-labels-idx1-ubyte.gz", "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c", MB),
            File(
                "t10k-images-idx3-ubyte.gz",
                "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
                20 * MB,
            ),
            File("t10k-labels-idx1-ubyte.gz", "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6", MB),
        ),
    ),
    "fashion-mnist": Download(
        "fashion-mnist",
        (
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
            "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
        ),
        (
            File(
                "train-images-idx3-ubyte.gz",
                "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
                50 * MB,
            ),
            File("train-labels-idx1-ubyte.gz", "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845", MB),
            File(
                "t10k-images-idx3-ubyte.gz",
                "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
                50 * MB,
            ),
            File("t10k-labels-idx1-ubyte.gz", "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5", MB),
        ),
    ),
    "cifar10": Download(
        "cifar-10-batches-bin",
        CIFAR,
        (
            File(
                "cifar-10-binary.tar.gz",
                "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
                200 * MB,
            ),
        ),
        Limits(members=100, size=250 * MB),
    ),
    "cifar100": Download(
        "cifar-100-binary",
        CIFAR,
        (
            File(
                "cifar-100-binary.tar.gz",
                "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
                200 * MB,
            ),
        ),
        Limits(members=100, size=250 * MB),
    ),
    "tiny-imagenet": Download(
        "tiny-imagenet-200",
        ("http://cs231n.stanford.edu/",),
        (
            File(
                "tiny-imagenet-200.zip",
                "6198c8ae015e2b3e007c7841da39ec069199b9aa3bfa943a462022fe5e43c821",
                300 * MB,
            ),
        ),
        Limits(members=150_000, size=1000 * MB),
    ),
}


def get(download: Download, target: Path, *, progress: Progress, mirror: str | None = None) -> Path:
    """Download a set below `target`; a broken download is continued, by this call or by the next one."""
    try:
        target.mkdir(parents=True, exist_ok=True)
        with locked(target):
            return _get(download, target, (mirror,) if mirror else download.places, progress)
    except OSError as error:
        raise UserError(f"cannot write to {target}: {error.strerror or error}; choose another --data-dir") from error


def _get(download: Download, target: Path, places: tuple[str, ...], progress: Progress) -> Path:
    folder = target / download.folder
    if download.limits is not None:
        (file,) = download.files
        archive = fetch(file, places, target, progress)
        unpack(archive, target, download.folder, download.limits)
        archive.unlink()
        return folder
    folder.mkdir(exist_ok=True)
    try:
        for file in download.files:
            if not (folder / file.name).exists():
                os.replace(fetch(file, places, folder, progress), folder / file.name)
    finally:
        with suppress(OSError):
            folder.rmdir()  # where not a byte has come
    return folder


def fetch(file: File, places: tuple[str, ...], folder: Path, progress: Progress) -> Path:
    """The file FOLDER/NAME.part, whole and with the right checksum."""
    part = folder / f"{file.name}.part"
    inherited = part.exists()
    reason = "no attempt was made"
    for attempt in range(ATTEMPTS):
        url = places[attempt % len(places)].rstrip("/") + "/" + file.name
        if attempt >= len(places):
            time.sleep(PAUSE * 2 ** (attempt - len(places)))
        try:
            whole = _receive(url, part, file, progress)
        except urllib.error.HTTPError as error:
            reason = f"{url}: the server says {error.code} {error.reason}"
            if error.code == 416:  # what we have is no beginning of what it has
                part.unlink(missing_ok=True)
            continue
        except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError, ValueError) as error:
            if isinstance(error, UserError):
                raise
            reason = f"{url}: {getattr(error, 'reason', None) or error or type(error).__name__}"
            continue
        found = _sha256(part)
        if found == file.sha256:  # whatever the server said about its length
            return part
        if not whole:
            reason = f"{url}: the connection broke off"
            continue
        part.unlink()
        reason = f"{url}: these are not the official bytes (SHA-256 {found[:12]}..., expected {file.sha256[:12]}...)"
        if not inherited:  # a wrong beginning from an earlier day deserves a second chance; wrong bytes do not
            break
        inherited = False
    kept = f"; {part.stat().st_size} bytes are kept, and the same command goes on from there" if part.exists() else ""
    raise UserError(f"cannot get {file.name}: {' '.join(str(reason).split())}{kept}")


def _receive(url: str, part: Path, file: File, progress: Progress) -> bool:
    """Append what the server has beyond our part; whether that was all of it."""
    if not url.startswith(("http://", "https://")):
        raise UserError(f"{url}: expected an address that starts with http:// or https://")
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"User-Agent": "lipscale", "Accept-Encoding": "identity"})
    if have:
        request.add_header("Range", f"bytes={have}-")
    with urllib.request.urlopen(request, timeout=TIMEOUT) as response:
        continues = response.status == 206 and response.headers.get("Content-Range", "").startswith(f"bytes {have}-")
        if not continues:
            have = 0
        length = response.headers.get("Content-Length")
        total = have + int(length) if length and length.isdigit() else None
        if total is not None and total > file.most:
            raise UserError(f"{url}: the server wants to send {total} bytes, {file.most} at most were expected")
        if total is not None and total - have > shutil.disk_usage(part.parent).free:
            raise UserError(f"{part.parent} has no room for {total - have} bytes; free some space or choose --data-dir")
        with part.open("ab" if continues else "wb") as out:
            progress(file.name, have, total)
            while block := response.read(BLOCK):
                have += len(block)
                if have > file.most:
                    out.truncate(0)
                    raise UserError(f"{url}: the server sends more than the {file.most} bytes that were expected")
                out.write(block)
                progress(file.name, have, total)
            out.flush()
            os.fsync(out.fileno())
    return total is None or have >= total


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
