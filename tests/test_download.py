"""`lipscale data get` against a local server that misbehaves in every way, and archives that try to get out."""

import contextlib
import gzip
import hashlib
import http.server
import io
import re
import socket
import stat
import tarfile
import threading
import zipfile

import numpy as np
import pytest

from conftest import lipscale
from lipscale.data import download
from lipscale.data.download import DOWNLOADS, Download, File, fetch, get
from lipscale.data.unpack import Limits, unpack
from lipscale.errors import UserError

BODY = np.random.default_rng(0).integers(0, 256, 300_000, dtype=np.uint8).tobytes()
FILE = File("set.bin", hashlib.sha256(BODY).hexdigest(), 400_000)


class Server:
    """Serves one body, in one of many bad manners, and remembers what it was asked."""

    def __init__(self):
        self.body, self.manner, self.ranges = BODY, "good", []
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def log_message(self, *arguments):
                pass

            def do_GET(self):
                outer.answer(self)

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.http.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.http.server_port}/"

    def answer(self, request):
        found = re.match(r"bytes=(\d+)-", request.headers.get("Range", ""))
        start = int(found.group(1)) if found else 0
        self.ranges.append(start)
        manner = self.manner.pop(0) if isinstance(self.manner, list) else self.manner
        if manner == "error":
            request.send_error(503)
            return
        if manner == "missing":
            request.send_error(404)
            return
        if manner == "hang up":
            request.connection.shutdown(socket.SHUT_RDWR)
            return
        if manner == "no resume" or not found:
            start = 0
        if start and start >= len(self.body):
            request.send_error(416)
            return
        body = self.body[start:]
        request.send_response(206 if start else 200)
        if start:
            told = start + (1000 if manner == "another range" else 0)
            request.send_header("Content-Range", f"bytes {told}-{len(self.body) - 1}/{len(self.body)}")
        length = {"says more": len(body) + 5000, "says less": len(body) - 5000, "says huge": 10**15}.get(
            manner, len(body)
        )
        if manner != "no length":
            request.send_header("Content-Length", "lots" if manner == "says nonsense" else str(length))
        request.end_headers()
        if manner == "cut off":
            body = body[:100_000]
        if manner == "other bytes":
            body = bytes(len(body))
        with contextlib.suppress(OSError):
            request.wfile.write(body)
        request.close_connection = True


@pytest.fixture
def server():
    found = Server()
    yield found
    found.http.shutdown()
    found.http.server_close()


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch):
    monkeypatch.setattr(download, "PAUSE", 0.0)
    monkeypatch.setattr(download, "TIMEOUT", 5)


def receive(server, folder, file=FILE):
    seen = []
    path = fetch(file, (server.url,), folder, lambda name, done, total: seen.append((done, total)))
    return path, seen


@pytest.mark.parametrize("manner", ["good", "no length", "says nonsense", "says more"])
def test_a_whole_file_arrives_with_progress(server, tmp_path, manner):
    server.manner = manner
    path, seen = receive(server, tmp_path)
    assert path.read_bytes() == BODY
    assert seen[-1][0] == len(BODY)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_a_broken_download_goes_on_where_it_broke_off(server, tmp_path):
    server.manner = ["cut off", "cut off", "good"]
    path, _ = receive(server, tmp_path)
    assert path.read_bytes() == BODY
    assert server.ranges == [0, 100_000, 200_000]


def test_it_goes_on_in_another_process_too(server, tmp_path):
    (tmp_path / "set.bin.part").write_bytes(BODY[:123_456])
    path, _ = receive(server, tmp_path)
    assert path.read_bytes() == BODY
    assert server.ranges == [123_456]


@pytest.mark.parametrize("manner", ["no resume", "another range"])
def test_a_server_that_cannot_continue_starts_again(server, tmp_path, manner):
    (tmp_path / "set.bin.part").write_bytes(BODY[:5000])
    server.manner = [manner, "good"] if manner == "another range" else manner
    path, _ = receive(server, tmp_path)
    assert path.read_bytes() == BODY


def test_a_wrong_beginning_is_thrown_away_once(server, tmp_path):
    (tmp_path / "set.bin.part").write_bytes(bytes(5000))
    path, _ = receive(server, tmp_path)
    assert path.read_bytes() == BODY
    (tmp_path / "set.bin.part").write_bytes(BODY + b"too much")
    assert receive(server, tmp_path)[0].read_bytes() == BODY


def test_errors_are_tried_again_and_then_named(server, tmp_path):
    server.manner = ["error", "hang up", "cut off", "error", "good"]
    assert receive(server, tmp_path)[0].read_bytes() == BODY
    (tmp_path / "set.bin.part").unlink()
    for manner, message in [
        ("error", "503"),
        ("missing", "404"),
        ("hang up", "set.bin"),
        ("other bytes", "not the official bytes"),
        ("says less", "not the official bytes"),
        ("says huge", "wants to send 1000000000000000 bytes"),
    ]:
        server.manner = manner
        with pytest.raises(UserError, match=message) as caught:
            receive(server, tmp_path)
        assert len(str(caught.value).splitlines()) == 1
        (tmp_path / "set.bin.part").unlink(missing_ok=True)


def test_a_server_that_never_stops_is_cut_off(server, tmp_path):
    server.body = bytes(1_000_000)
    server.manner = "no length"
    with pytest.raises(UserError, match="more than the 400000 bytes"):
        receive(server, tmp_path)
    assert sum(p.stat().st_size for p in tmp_path.iterdir()) == 0


def test_the_next_place_is_tried(server, tmp_path):
    path = fetch(FILE, ("http://127.0.0.1:1/", server.url), tmp_path, lambda *_: None)
    assert path.read_bytes() == BODY


@pytest.mark.parametrize("url", ["file:///etc/", "ftp://127.0.0.1/", "nonsense"])
def test_only_the_web(tmp_path, url):
    with pytest.raises(UserError, match="http"):
        fetch(FILE, (url,), tmp_path, lambda *_: None)


def tar(*members):
    """A .tar.gz of (name, content) pairs or ready-made TarInfos."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                archive.addfile(member)
                continue
            info = tarfile.TarInfo(member[0])
            info.size = len(member[1])
            archive.addfile(info, io.BytesIO(member[1]))
    return out.getvalue()


def special(name, kind, target=""):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def zipped(*members, links=()):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members:
            info = zipfile.ZipInfo(name)
            if name in links:
                info.external_attr = (stat.S_IFLNK | 0o777) << 16
            archive.writestr(info, content)
    return out.getvalue()


def bomb():
    """Ten megabytes of zeros in ten kilobytes."""
    return bytes(10_000_000)


GOOD = (("set/a.txt", b"hello"), ("set/sub/b.txt", b"world"))
HOSTILE = {
    "a parent": tar(*GOOD, ("set/../../evil", b"x")),
    "a parent at once": tar(("../evil", b"x")),
    "an absolute path": tar(("/tmp/evil-lipscale", b"x")),
    "another folder": tar(*GOOD, ("other/a.txt", b"x")),
    "a symbolic link": tar(*GOOD, special("set/link", tarfile.SYMTYPE, "/etc/passwd")),
    "a link, then a file through it": tar(special("set/d", tarfile.SYMTYPE, ".."), ("set/d/evil", b"x")),
    "a hard link": tar(*GOOD, special("set/link", tarfile.LNKTYPE, "/etc/passwd")),
    "a device": tar(*GOOD, special("set/null", tarfile.CHRTYPE)),
    "a pipe": tar(*GOOD, special("set/pipe", tarfile.FIFOTYPE)),
    "a bomb": tar(*GOOD, ("set/bomb", bomb())),
    "too many files": tar(*((f"set/{i}", b"") for i in range(60))),
    "a file twice": tar(*GOOD, ("set/a.txt", b"again")),
    "a file below a file": tar(("set/a", b"x"), ("set/a/b", b"y")),
    "cut off": tar(*GOOD, ("set/c", bytes(np.random.default_rng(0).integers(0, 256, 5000, dtype=np.uint8))))[:-3000],
    "no archive": b"hello",
    "nothing": b"",
    "an empty archive": tar(),
    "a file instead of the folder": tar(("set", b"x")),
    "a name too long": tar(("set/" + "x" * 300, b"x")),
    "a header bomb": gzip.compress(
        special("set/x", tarfile.XHDTYPE).tobuf(tarfile.USTAR_FORMAT)[:124]
        + b"00077777777\0"
        + special("set/x", tarfile.XHDTYPE).tobuf(tarfile.USTAR_FORMAT)[136:]
        + bomb()
    ),
    "a zip with a parent": zipped(*GOOD, ("../evil", b"x")),
    "a zip with an absolute path": zipped(*GOOD, ("/tmp/evil-lipscale", b"x")),
    "a zip with backslashes": zipped(*GOOD, ("set\\..\\..\\evil", b"x")),
    "a zip with a link": zipped(*GOOD, ("set/link", b"/etc/passwd"), links=("set/link",)),
    "a zip bomb": zipped(*GOOD, ("set/bomb", bomb())),
    "a zip with too many files": zipped(*((f"set/{i}", b"") for i in range(60))),
    "a zip cut off": zipped(*GOOD)[:-30],
    "a zip of another folder": zipped(("other/a", b"x")),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_archives_leave_nothing_behind(tmp_path, name):
    inside = tmp_path / "deep" / "target"
    inside.mkdir(parents=True)
    archive = inside / ("set.zip.part" if "zip" in name else "set.tar.gz.part")
    archive.write_bytes(HOSTILE[name])
    with pytest.raises(UserError, match="set") as caught:
        unpack(archive, inside, "set", Limits(members=50, size=1_000_000))
    assert len(str(caught.value).splitlines()) == 1
    assert [p.name for p in inside.iterdir()] == [archive.name]
    assert [p.name for p in (tmp_path / "deep").iterdir()] == ["target"]
    assert not (tmp_path / "evil").exists()


@pytest.mark.parametrize(("suffix", "pack"), [(".tar.gz", tar), (".zip", zipped)])
def test_a_good_archive_is_unpacked_and_left_overs_are_cleared(tmp_path, suffix, pack):
    (tmp_path / ".unpacking-old").mkdir()
    (tmp_path / f"set{suffix}").write_bytes(pack(*GOOD))
    unpack(tmp_path / f"set{suffix}", tmp_path, "set", Limits(members=50, size=1000))
    assert (tmp_path / "set" / "sub" / "b.txt").read_bytes() == b"world"
    assert {p.name for p in tmp_path.iterdir()} == {"set", f"set{suffix}"}
    with pytest.raises(UserError, match="exists already"):
        unpack(tmp_path / f"set{suffix}", tmp_path, "set", Limits(members=50, size=1000))


def test_get_downloads_checks_and_unpacks(server, tmp_path):
    server.body = tar(*GOOD)
    server.manner = ["cut off", "good"]
    files = (File("set.tar.gz", hashlib.sha256(server.body).hexdigest(), 10**6),)
    archive = Download("set", (server.url,), files, Limits(members=50, size=10**6))
    get(archive, tmp_path / "new", progress=lambda *_: None)
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["set"]
    plain = Download("plain", (server.url,), files)
    server.manner = "good"
    get(plain, tmp_path / "new", progress=lambda *_: None)
    assert (tmp_path / "new" / "plain" / "set.tar.gz").read_bytes() == server.body


def test_the_console_script_refuses_what_is_not_official(server, tmp_path):
    server.body = tar(("cifar-10-batches-bin/data_batch_1.bin", b"x"))
    arguments = ("data", "get", "cifar10", "--data-dir", tmp_path, "--mirror", server.url)
    done = lipscale(*arguments, check=False)
    assert done.returncode == 2
    assert done.stderr.count("lipscale: cannot get cifar-10-binary.tar.gz") == 1
    assert "not the official bytes" in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []
    unknown = lipscale("data", "get", "imagenet", check=False)
    assert unknown.returncode == 2
    assert "mnist, fashion-mnist, cifar10" in unknown.stderr


def test_every_public_set_but_the_embedded_one_can_be_had():
    from lipscale.data import READERS

    assert set(DOWNLOADS) == {name for name, reader in READERS.items() if reader.layouts}
    for name, found in DOWNLOADS.items():
        assert found.folder == READERS[name].layouts[0][0]
        assert all(re.fullmatch("[0-9a-f]{64}", file.sha256) for file in found.files)
