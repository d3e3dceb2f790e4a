"""`lipscale data get` against a local server that misbehaves in every way, and archives that try to get out."""

import contextlib
import hashlib
import http.server
import io
import os
import re
import socket
import stat
import tarfile
import threading
import zipfile
from pathlib import Path

import numpy as np
import pytest

from conftest import lipscale
from lipscale.data import READERS, download
from lipscale.data.download import fetch, get
from lipscale.data.registry import KnownSet
from lipscale.errors import UserError

BODY = np.random.default_rng(0).integers(0, 256, 300_000, dtype=np.uint8).tobytes()
SHA256 = hashlib.sha256(BODY).hexdigest()


class Server:
    """Serves one body, in one of many bad manners, one for each request if it is a list."""

    def __init__(self):
        self.body, self.manner = BODY, "good"
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
        manner = self.manner.pop(0) if isinstance(self.manner, list) else self.manner
        if manner in ("error", "missing"):
            request.send_error(503 if manner == "error" else 404)
            return
        if manner == "hang up":
            request.connection.shutdown(socket.SHUT_RDWR)
            return
        body = self.body
        request.send_response(200)
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
    monkeypatch.setattr(download, "MOST_BYTES", 400_000)


def receive(server, folder):
    seen = []
    path = fetch("set.bin", SHA256, (server.url,), folder, lambda name, done, total: seen.append((done, total)))
    return path, seen


@pytest.mark.parametrize("manner", ["good", "no length"])
def test_a_whole_file_arrives_with_progress(server, tmp_path, manner):
    server.manner = manner
    path, seen = receive(server, tmp_path)
    assert path.read_bytes() == BODY
    if manner == "good":
        assert seen[-1] == (len(BODY), len(BODY))
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert [p.name for p in tmp_path.iterdir()] == ["set.bin"]


def test_a_broken_download_is_tried_again(server, tmp_path):
    server.manner = ["error", "hang up", "cut off", "says more", "good"]
    assert receive(server, tmp_path)[0].read_bytes() == BODY


@pytest.mark.parametrize(
    ("manner", "message"),
    [
        ("error", "503"),
        ("missing", "404"),
        ("hang up", "set.bin"),
        ("cut off", "set.bin"),
        ("other bytes", "not the official bytes"),
        ("says less", "not the official bytes"),
        ("says more", "set.bin"),
        ("says nonsense", "set.bin"),
        ("says huge", "more than the 400000 bytes"),
    ],
)
def test_what_stays_broken_is_named_and_leaves_nothing(server, tmp_path, manner, message):
    server.manner = manner
    with pytest.raises(UserError, match=message) as caught:
        receive(server, tmp_path)
    assert len(str(caught.value).splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_never_stops_is_cut_off(server, tmp_path):
    server.body = bytes(1_000_000)
    server.manner = "no length"
    with pytest.raises(UserError, match="more than the 400000 bytes"):
        receive(server, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_next_place_is_tried(server, tmp_path):
    path = fetch("set.bin", SHA256, ("http://127.0.0.1:1/", server.url), tmp_path)
    assert path.read_bytes() == BODY
    path.unlink()
    server.manner = ["other bytes", "good"]  # the first place has another file
    assert fetch("set.bin", SHA256, (server.url, server.url), tmp_path).read_bytes() == BODY


@pytest.mark.parametrize("url", ["file:///etc/", "ftp://127.0.0.1/", "nonsense"])
def test_only_the_web(tmp_path, url):
    with pytest.raises(UserError, match="http"):
        fetch("set.bin", SHA256, (url,), tmp_path)


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


GOOD = (("set/a.txt", b"hello"), ("set/sub/b.txt", b"world"))
HOSTILE = {
    "a parent": tar(*GOOD, ("set/../../evil", b"x")),
    "a parent at once": tar(("../evil", b"x")),
    "an absolute path": tar(("/tmp/evil-lipscale", b"x")),
    "another folder": tar(("other/a.txt", b"x")),
    "a symbolic link": tar(*GOOD, special("set/link", tarfile.SYMTYPE, "/etc/passwd")),
    "a link, then a file through it": tar(special("set/d", tarfile.SYMTYPE, "../.."), ("set/d/evil", b"x")),
    "a hard link": tar(*GOOD, special("set/link", tarfile.LNKTYPE, "/etc/passwd")),
    "a device": tar(*GOOD, special("set/null", tarfile.CHRTYPE)),
    "a pipe": tar(*GOOD, special("set/pipe", tarfile.FIFOTYPE)),
    "a file below a file": tar(("set/a", b"x"), ("set/a/b", b"y")),
    "cut off": tar(*GOOD, ("set/c", bytes(np.random.default_rng(0).integers(0, 256, 5000, dtype=np.uint8))))[:-3000],
    "no archive": b"hello",
    "nothing": b"",
    "an empty archive": tar(),
    "a file instead of the folder": tar(("set", b"x")),
    "a name too long": tar(("set/" + "x" * 300, b"x")),
    "a zip with a parent": zipped(("set/a.txt", b"x"), ("../evil", b"x")),
    "a zip with an absolute path": zipped(("set/a.txt", b"x"), ("/tmp/evil-lipscale", b"x")),
    "a zip with a link": zipped(("set/a.txt", b"x"), ("set/sub", b"/etc"), ("set/sub/b.txt", b"x"), links=("set/sub",)),
    "a zip cut off": zipped(*GOOD)[:-30],
    "a zip of another folder": zipped(("other/a", b"x")),
}


def publish(monkeypatch, server, body, file):
    """Make the server the place of a set in an archive."""
    server.body = body
    files = {file: hashlib.sha256(body).hexdigest()}
    known = KnownSet(lambda folder: None, "", (("set", ("a.txt", "sub/b.txt")),), "", (server.url,), files)
    monkeypatch.setitem(READERS, "set", known)


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_archives_leave_nothing_behind(tmp_path, monkeypatch, server, name):
    """Even with a right checksum."""
    inside = tmp_path / "deep" / "target"
    inside.mkdir(parents=True)
    publish(monkeypatch, server, HOSTILE[name], "set.zip" if "zip" in name else "set.tar.gz")
    with pytest.raises(UserError, match="set") as caught:
        get("set", inside)
    assert len(str(caught.value).splitlines()) == 1
    assert list(inside.iterdir()) == []
    assert [p.name for p in (tmp_path / "deep").iterdir()] == ["target"]
    assert not (tmp_path / "evil").exists()
    assert not Path("/tmp/evil-lipscale").exists()


@pytest.mark.parametrize(("file", "pack"), [("set.tar.gz", tar), ("set.zip", zipped)])
def test_get_downloads_checks_and_unpacks(tmp_path, monkeypatch, server, file, pack):
    publish(monkeypatch, server, pack(*GOOD), file)
    server.manner = ["error", "good"]
    old = tmp_path / "new" / ".lipscale-old"
    old.mkdir(parents=True)
    os.utime(old, (0, 0))  # of a process that was killed long ago
    assert get("set", tmp_path / "new") == tmp_path / "new" / "set"
    assert (tmp_path / "new" / "set" / "sub" / "b.txt").read_bytes() == b"world"
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["set"]
    with pytest.raises(UserError, match="exists already"):
        get("set", tmp_path / "new")


def test_files_that_are_no_archive_stay_as_they_are(tmp_path, monkeypatch, server):
    known = KnownSet(
        lambda folder: None, "", (("plain", ("set.bin",)),), "", ("http://127.0.0.1:1/",), {"set.bin": SHA256}
    )
    monkeypatch.setitem(READERS, "plain", known)
    get("plain", tmp_path, mirror=server.url)
    assert (tmp_path / "plain" / "set.bin").read_bytes() == BODY
    assert [p.name for p in tmp_path.iterdir()] == ["plain"]


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match="cannot write to .*file"):
        get("mnist", tmp_path / "file")


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
    for name, known in READERS.items():
        assert bool(known.layouts) == bool(known.files) == bool(known.places) == (name != "digits")
        assert all(re.fullmatch("[0-9a-f]{64}", sha256) for sha256 in known.files.values())
