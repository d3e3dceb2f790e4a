"""The public sets from their official places, by pooch: checked, and there as a whole or not at all."""

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from lipscale.data.registry import DOWNLOADS, READERS, holds
from lipscale.errors import UserError

TIMEOUT = 30  # seconds without a byte
ATTEMPTS = 6
PAUSE = 1.0  # seconds before the first retry, doubled each time
MOST_BYTES = 500_000_000  # a server that sends more is cut off
BLOCK = 1 << 16
PREFIX = ".lipscale-"

Progress = Callable[[str, int, int | None], None]  # file name, bytes so far, bytes in all where the server says


def get(
    name: str, target: Path | None = None, *, mirror: str | None = None, progress: Progress = lambda *_: None
) -> Path:
    """Download a public set into a folder of its own below `target`, from a mirror or its official places."""
    known = READERS[name]
    target = target or Path(DOWNLOADS).expanduser()
    folder, files = known.layouts[0]
    if (target / folder).exists():
        raise UserError(f"{target / folder} exists already; move it away first")
    try:
        target.mkdir(parents=True, exist_ok=True)
        for old in target.glob(f"{PREFIX}*"):  # of a process that was killed
            if time.time() - old.stat().st_mtime > 24 * 3600:
                shutil.rmtree(old, ignore_errors=True)
        # beside its place, and then renamed into it
        with tempfile.TemporaryDirectory(prefix=PREFIX, dir=target) as room:
            for file, sha256 in known.files.items():
                path = fetch(file, sha256, (mirror,) if mirror else known.places, Path(room) / folder, progress)
                if file.endswith((".tar.gz", ".zip")):
                    unpack(path, Path(room))
                    path.unlink()
            if not holds(Path(room) / folder, files):
                raise UserError(f"{', '.join(known.files)} lacks files of {name}; expected {', '.join(files)}")
            os.replace(Path(room) / folder, target / folder)
    except OSError as error:
        raise UserError(f"cannot write to {target}: {error.strerror or error}; choose another `data_dir`") from error
    return target / folder


def fetch(file: str, sha256: str, places: Sequence[str], folder: Path, progress: Progress = lambda *_: None) -> Path:
    """The file, with the right checksum, from the first place that has it; a broken download is tried again."""
    import pooch
    from requests import RequestException

    pooch.get_logger().setLevel("WARNING")
    left, reason = [f"{place.rstrip('/')}/{file}" for place in places], ""
    for attempt in range(ATTEMPTS if left else 0):
        url = left[attempt % len(left)]
        if not url.startswith(("http://", "https://")):
            raise UserError(f"{url}: expected an address that starts with http:// or https://")
        time.sleep(PAUSE * 2 ** (attempt - len(places)) if attempt >= len(places) else 0)
        try:
            downloader = partial(_download, progress=partial(progress, file))
            return Path(pooch.retrieve(url, f"sha256:{sha256}", file, folder, downloader=downloader))
        except RequestException as error:
            reason = f"{url}: {error}"
        except ValueError as error:
            if isinstance(error, UserError):
                raise
            reason = f"{url}: these are not the official bytes ({error})"
            left.remove(url)  # it would send the same again
            if not left:
                break
    raise UserError(f"cannot get {file}: {' '.join(reason.split())[:300]}")


def unpack(archive: Path, room: Path) -> None:
    """Unpack an archive whose checksum was right; even so, nothing leaves the room (tarfile's data filter)."""
    safe = {} if archive.suffix == ".zip" else {"filter": "data"}
    try:
        shutil.unpack_archive(archive, room, **safe)  # type: ignore[arg-type]
    except Exception as error:  # damage raises a dozen kinds
        raise UserError(f"cannot unpack {archive.name} ({' '.join(str(error).split())[:120]})") from error


def _download(url: str, output: str, _: object, progress: Callable[[int, int | None], None]) -> None:
    """One file in blocks; a server that sends too much is cut off."""
    import requests

    headers = {"User-Agent": "lipscale", "Accept-Encoding": "identity"}
    with requests.get(url, timeout=TIMEOUT, headers=headers, stream=True) as answer, open(output, "wb") as file:
        answer.raise_for_status()
        total, done = int(answer.headers.get("content-length", 0)), 0
        for block in answer.iter_content(BLOCK):
            done += len(block)
            if max(done, total) > MOST_BYTES:
                raise UserError(f"{url}: the server sends more than the {MOST_BYTES} bytes that were expected")
            file.write(block)
            progress(done, total or None)
