"""The public sets from their official places, by pooch: checked, and there as a whole or not at all."""

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
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


def get(name: str, target: Path | None = None, *, mirror: str | None = None, progress: Progress | None = None) -> Path:
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


def fetch(file: str, sha256: str, places: Sequence[str], folder: Path, progress: Progress | None = None) -> Path:
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
        headers = {"User-Agent": "lipscale", "Accept-Encoding": "identity"}
        counter = _Counter(url, file, progress)
        download = pooch.HTTPDownloader(progressbar=counter, chunk_size=BLOCK, timeout=TIMEOUT, headers=headers)
        try:
            return Path(pooch.retrieve(url, f"sha256:{sha256}", file, folder, downloader=download))
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


class _Counter:
    """What pooch takes for a progress bar: it tells how far a download is, and ends one that is too large."""

    def __init__(self, url: str, file: str, progress: Progress | None) -> None:
        self.url, self.file, self.progress = url, file, progress
        self.done, self.total = 0, 0  # pooch sets the total: what the server says, or 0

    def update(self, size: int) -> None:
        """Count a block."""
        self.done += size
        if max(self.done - BLOCK, self.total) > MOST_BYTES:
            raise UserError(f"{self.url}: the server sends more than the {MOST_BYTES} bytes that were expected")
        if self.progress is not None:
            self.progress(self.file, min(self.done, self.total or self.done), self.total or None)

    def reset(self) -> None:
        """Pooch counts the whole once more at the end."""
        self.done = 0 if self.total else self.done

    def close(self) -> None:
        """Nothing is left to do."""
