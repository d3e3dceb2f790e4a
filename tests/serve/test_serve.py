"""`lipscale serve`: answers are those of the run, what is hostile is refused in a sentence, a browser shows it."""

import base64
import io
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import zlib
from contextlib import contextmanager

import httpx
import numpy as np
import pytest
import schemathesis
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from schemathesis.checks import load_all_checks
from schemathesis.specs.openapi.checks import positive_data_acceptance

from browsing import is_dark, move, visit
from lipscale.certificates import prove
from lipscale.cli import serve as command
from lipscale.cli.signals import Stopped
from lipscale.errors import UserError
from lipscale.runs import load, train
from lipscale.runs.predict import ALL, predict_files
from lipscale.serve import create_app
from lipscale.serve.changes import with_norm
from lipscale.serve.limits import Buckets, Limits, is_local
from lipscale.settings import Settings
from makers import table_rows, write_csv

uvicorn = pytest.importorskip("uvicorn")
WIDE = Limits(burst=1e9, rate=1e9)
SCRIPT = "<script>document.title='broken'</script>"  # as the name of a class and of a column


@contextmanager
def serving(app):
    """The address of an app that is served on a thread, on a free port of this machine."""
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", ws="none", proxy_headers=False))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(10)


def quick(**changes):
    return train(Settings(epochs=6, phase2_epochs=1, width=16, device="cpu", **changes), progress=False)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    return quick(limit=300, calibration_fraction=0.1, out=tmp_path_factory.mktemp("serve") / "digits")


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """Numbers with gaps, dates, categories, and names that are markup."""
    folder = tmp_path_factory.mktemp("serve")
    rows = [
        [a if i % 7 else "", b, kind, f"2024-0{1 + i % 9}-1{i % 8}", y.replace("class0", SCRIPT)]
        for i, (a, b, kind, y) in enumerate(table_rows(150))
    ]
    path = write_csv(folder / "t.csv", rows, (SCRIPT, "b", "kind", "when", "y"))
    return quick(data=str(path), label="y", out=folder / "table")


@pytest.fixture(scope="module")
def picture_url(pictures):
    with serving(create_app(pictures, limits=WIDE)) as url:
        yield url


@pytest.fixture(scope="module")
def table_url(table):
    with serving(create_app(table, limits=WIDE)) as url:
        yield url


def ask(url, path, body):
    answer = httpx.post(f"{url}/api/{path}", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.json()


def samples_of(url):
    return httpx.get(f"{url}/api/samples").json()


def decoded(text):
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(text))), np.float64) / 255


def encoded(picture, kind="PNG", **options):
    data = io.BytesIO()
    picture.save(data, kind, **options)
    return base64.b64encode(data.getvalue()).decode()


def a_row(url):
    return next(sample["row"] for sample in samples_of(url) if None not in sample["row"].values())


# --- what is answered ---


def test_a_picture_is_answered_as_by_predict(pictures, picture_url, tmp_path):
    for i, sample in enumerate(samples_of(picture_url)[:4]):
        path = tmp_path / f"{i}.png"
        path.write_bytes(base64.b64decode(sample["picture"]))
        (expected,) = predict_files(pictures, [path], epsilon=0.1)
        found = ask(picture_url, "predict", {"picture": sample["picture"], "epsilons": [0.0, 0.1]})
        assert (found["label"], found["radius"]) == (expected.label, expected.radius)
        assert {c["label"]: c["probability"] for c in found["classes"]} == dict(expected.probabilities)
        assert found["classes"][0]["lowest"][1] == expected.lowest
        assert found["classes"][0]["highest"][1] == expected.highest
        assert sum(c["probability"] for c in found["classes"]) == pytest.approx(1)
        assert (decoded(found["seen"]) == decoded(sample["picture"])).all()


def test_bands_hold_the_probability_widen_with_epsilon_and_part_at_the_radius(picture_url):
    found = ask(picture_url, "predict", {"picture": samples_of(picture_url)[0]["picture"]})
    assert found["radius"] in [pytest.approx(eps) for eps in found["epsilons"]]
    for chance in found["classes"]:
        assert chance["lowest"][0] <= chance["probability"] <= chance["highest"][0]
        assert chance["lowest"] == sorted(chance["lowest"], reverse=True)
        assert chance["highest"] == sorted(chance["highest"])


def test_shown_changes_are_of_exactly_the_radius_and_change_nothing(picture_url):
    for sample in samples_of(picture_url):
        found = ask(picture_url, "predict", {"picture": sample["picture"]})
        for change in (found["random"], found["steepest"]):
            assert change["size"] == pytest.approx(found["radius"], rel=1e-9)
            assert change["size"] <= found["radius"] * (1 + 1e-12)
            shown = (decoded(change["difference"]) - 0.5) / change["magnified"]
            assert np.linalg.norm(shown) == pytest.approx(found["radius"], rel=0.05)  # to 8 bits


@given(st.integers(0, 10_000), st.floats(1e-3, 3))
def test_a_change_has_the_norm_that_is_asked_for_and_stays_in_the_box(seed, size):
    random = torch.Generator().manual_seed(seed)
    x, way = (torch.rand(1, 1, 6, 6, generator=random, dtype=torch.float64) for _ in range(2))
    way = way - 0.5
    point = with_norm(x, way / way.norm(), size, (0.0, 1.0))
    assert ((point >= 0) & (point <= 1)).all()
    farthest = torch.where(way > 0, 1 - x, -x).norm()
    assert float((point - x).norm()) == pytest.approx(min(size, float(farthest)), rel=1e-6)


def test_attacks_fail_within_the_radius_and_some_succeed_beyond(picture_url):
    changed = 0
    for sample in samples_of(picture_url)[:6]:
        radius = ask(picture_url, "predict", {"picture": sample["picture"]})["radius"]
        within = ask(picture_url, "attack", {"picture": sample["picture"], "epsilon": radius})
        assert within["certified"]
        assert not within["changed"]
        assert 0.9 * radius < within["distance"] <= radius
        beyond = ask(picture_url, "attack", {"picture": sample["picture"], "epsilon": 10 * radius})
        assert not beyond["certified"]
        assert not beyond["changed"] or beyond["distance"] > radius
        changed += beyond["changed"]
    assert changed >= 3


def test_a_row_is_answered_as_by_predict_with_a_radius_for_each_number(table, table_url, tmp_path):
    row = a_row(table_url)
    (expected,) = predict_files(table, [write_csv(tmp_path / "t.csv", [row.values()], [*row])], radii_of=[ALL])
    found = ask(table_url, "predict", {"row": row})
    assert (found["label"], found["radius"]) == (expected.label, expected.radius)
    assert {room["name"]: room["radius"] for room in found["columns"]} == dict(expected.radii)
    gap = ask(table_url, "predict", {"row": {**row, SCRIPT: None}})
    assert [room["radius"] for room in gap["columns"] if room["value"] is None] == [None]
    assert ask(table_url, "predict", {"row": {**row, "b": 1e6, "id": 7}})["outside"] == ["b"]


def test_what_an_attack_makes_of_a_row_can_be_typed_in(table_url):
    row = a_row(table_url)
    for times in (0.99, 20):
        radius = ask(table_url, "predict", {"row": row})["radius"]
        found = ask(table_url, "attack", {"row": row, "epsilon": times * radius})
        assert found["changed"] == (times > 1)
        moved = {move["name"]: move["after"] for move in found["columns"] if move["name"] != "when"}  # a day has hours
        when = next(move["after"] for move in found["columns"] if move["name"] == "when")
        stamp = str(np.datetime64(round(when * 86400e6), "us"))
        again = ask(table_url, "predict", {"row": {**row, **moved, "when": stamp}})
        assert again["label"] == found["label"]
        assert again["probability"] == pytest.approx(found["classes"][0]["probability"], abs=1e-5)


def test_without_a_constraint_nothing_is_claimed(tmp_path):
    run = quick(limit=200, method="standard", out=tmp_path / "run")
    with serving(create_app(run)) as url:
        assert httpx.get(f"{url}/api/about").json()["certified"] is False
        picture = samples_of(url)[0]["picture"]
        found = ask(url, "predict", {"picture": picture})
        assert (found["radius"], found["epsilons"], found["random"]) == (0, [], None)
        assert ask(url, "attack", {"picture": picture, "epsilon": 3})["certified"] is False


def test_rows_of_arrays_are_lists_of_numbers_and_the_data_need_not_be_there(tmp_path):
    x = torch.randn(120, 5)
    np.savez(tmp_path / "a.npz", x=x.numpy(), y=(x[:, 0] > 0).long().numpy())
    run = quick(data=str(tmp_path / "a.npz"), out=tmp_path / "run")
    with serving(create_app(run)) as url:
        row = samples_of(url)[0]["row"]
        assert ask(url, "predict", {"row": row})["label"] == run.predict([row])[0]
        assert len(ask(url, "attack", {"row": row, "epsilon": 0.5})["columns"]) == 5
        assert httpx.post(f"{url}/api/predict", json={"row": row[:-1]}).status_code == 422
    (tmp_path / "a.npz").unlink()
    with serving(create_app(load(run.folder))) as url:
        assert samples_of(url) == []
        assert ask(url, "predict", {"row": row})["label"] in run.classes


def test_the_certificate_is_made_once(pictures, monkeypatch):
    made = []
    monkeypatch.setattr("lipscale.serve.served.prove", lambda *given: made.append(1) or prove(*given))
    with serving(create_app(pictures)) as url:
        picture = samples_of(url)[0]["picture"]
        for _ in range(3):
            ask(url, "predict", {"picture": picture})
        ask(url, "attack", {"picture": picture, "epsilon": 0.1})
    assert made == [1]


def test_what_no_picture_file_can_be_is_refused_at_the_start(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.random.default_rng(0).random((60, 2, 6, 6)), y=np.arange(60) % 2)
    run = quick(data=str(tmp_path / "a.npz"), model="mlp", out=tmp_path / "run")
    with pytest.raises(UserError, match="not pictures"):
        create_app(run)


# --- hostile clients ---


def png_that_claims(width, height):
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    data = b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(bytes(1 << 20))) + chunk(b"IEND", b"")
    return base64.b64encode(data).decode()


GREY = Image.new("L", (8, 8))
PICTURES = {
    "a bomb": png_that_claims(50_000, 50_000),
    "a large one": png_that_claims(6000, 6000),
    "a truncated one": encoded(Image.effect_noise((64, 64), 50))[:400],
    "16 bits": encoded(Image.new("I;16", (8, 8))),
    "a program": base64.b64encode(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(x) run").decode(),
    "a path": "/etc/passwd",
    "a url": "file:///etc/passwd",
    "not base64": "é",
    "nothing": "",
    "a number": 5,
    "a list": ["a"],
    "null": None,
}
GOOD = encoded(GREY)
ROWS = {
    "unseen category": {"kind": "purple"},
    "infinite": {"b": float("inf")},
    "not a number": {"b": float("nan")},
    "text": {"b": "5"},
    "truth": {"b": True},
    "nested": {"b": [[1]]},
    "huge": {"b": 1e308},
    "integer of 400 digits": {"b": 10**400},
    "no date": {"when": "2024-99-99"},
    "long text": {"when": "x" * 5000},
}
BODIES = {
    "no JSON": b"{",
    "no UTF-8": b"\xff\xfe",
    "empty": b"",
    "null": b"null",
    "nested": b"[" * 500_000,
    "a long integer": b'{"epsilon":' + b"9" * 100_000 + b"}",
    "many keys": b"{" + b",".join(b'"%d":1' % i for i in range(60_000)) + b"}",
}


def refused(answer, *statuses):
    """One clear sentence, without a path or an address of ours."""
    assert answer.status_code in (statuses or (400, 422)), answer.text
    said = answer.json()["detail"]
    assert 10 < len(said) < 600, said
    assert "\n" not in said
    assert not re.search(r"Traceback|0x[0-9a-f]{6}|site-packages", said), said


@pytest.mark.parametrize("name", PICTURES)
def test_hostile_pictures(picture_url, name):
    refused(httpx.post(f"{picture_url}/api/predict", json={"picture": PICTURES[name]}))
    refused(httpx.post(f"{picture_url}/api/attack", json={"picture": PICTURES[name], "epsilon": 0.1}))
    assert ask(picture_url, "predict", {"picture": GOOD})["label"]


@pytest.mark.parametrize("name", ROWS)
def test_hostile_rows(table_url, name):
    row = a_row(table_url)
    body = json.dumps({"row": {**row, **ROWS[name]}})
    refused(httpx.post(f"{table_url}/api/predict", content=body, headers={"Content-Type": "application/json"}))
    assert ask(table_url, "predict", {"row": row})["label"]


@pytest.mark.parametrize("name", BODIES)
def test_hostile_bodies(picture_url, name):
    headers = {"Content-Type": "application/json"}
    for path in ("predict", "attack"):
        refused(httpx.post(f"{picture_url}/api/{path}", content=BODIES[name], headers=headers))


@pytest.mark.parametrize(
    "body",
    [
        {"picture": GOOD, "path": "/etc/passwd"},
        {"row": [1, 2]},
        {"picture": GOOD, "epsilons": []},
        {"picture": GOOD, "epsilons": [0.1] * 102},
        {"picture": GOOD, "epsilons": [-1]},
        {"picture": GOOD, "epsilons": ["0.1"]},
        {"picture": GOOD, "epsilon": 0.1},
    ],
)
def test_wrong_questions(picture_url, body):
    refused(httpx.post(f"{picture_url}/api/predict", json=body))


@pytest.mark.parametrize("epsilon", [0, -1, 1e300, "0.1", None, True])
def test_wrong_attacks(picture_url, epsilon):
    refused(httpx.post(f"{picture_url}/api/attack", json={"picture": GOOD, "epsilon": epsilon}))


def test_no_path_of_a_request_reaches_the_disk(picture_url):
    opened, watching = [], True

    def watch(event, given):  # a hook stays for the life of the process
        if watching and event in ("open", "os.listdir", "os.scandir", "subprocess.Popen"):
            opened.append(str(given[0]))

    sys.addaudithook(watch)
    for path in ("/../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "/page.css/../x", "//etc/passwd", "/page.js%00"):
        with socket.create_connection(("127.0.0.1", int(picture_url.rsplit(":", 1)[1]))) as client:  # sent as it stands
            client.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode())
            assert client.recv(65536).startswith(b"HTTP/1.1 404")
    for picture in PICTURES.values():
        httpx.post(f"{picture_url}/api/predict", json={"picture": picture})
    ask(picture_url, "predict", {"picture": GOOD})
    watching = False
    theirs = [path for path in opened if "site-packages" not in path and not path.startswith("/etc/ssl")]  # httpx's own
    assert [
        path for path in theirs if not path.startswith(("/proc/", "/sys/fs/cgroup"))
    ] == []  # how much memory is free


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:80", ""])
def test_other_names_of_this_machine_are_refused(picture_url, pictures, host):
    refused(httpx.get(f"{picture_url}/api/about", headers={"Host": host}), 403)
    assert httpx.get(f"{picture_url}/api/about", headers={"Host": "localhost:8000"}).status_code == 200


def test_pages_of_other_sites_are_refused(picture_url):
    for origin in ("http://evil.example", "null", "http://127.0.0.1:1"):
        refused(httpx.post(f"{picture_url}/api/predict", json={"picture": GOOD}, headers={"Origin": origin}), 403)
    own = httpx.post(f"{picture_url}/api/predict", json={"picture": GOOD}, headers={"Origin": picture_url})
    assert own.status_code == 200


def test_every_answer_has_the_headers_that_keep_a_browser_safe(picture_url):
    for path in ("/", "/page.js", "/api/about", "/nothing"):
        headers = httpx.get(picture_url + path).headers
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        assert "unsafe" not in headers["Content-Security-Policy"]
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert "Access-Control-Allow-Origin" not in headers
        assert "server" not in headers or headers["server"] == "uvicorn"


def test_too_large_too_slow_and_too_many(pictures):
    limits = Limits(body=10_000, seconds=0.3, burst=12, rate=0.5)
    with serving(create_app(pictures, limits=limits, samples=False)) as url, httpx.Client(base_url=url) as client:
        refused(client.post("/api/predict", content=b"x" * 10_001), 413)
        refused(client.post("/api/predict", content=(b"x" * 3000 for _ in range(5))), 413)  # chunked: no size is stated
        with socket.create_connection(("127.0.0.1", int(url.rsplit(":", 1)[1])), timeout=10) as slow:
            slow.sendall(b"POST /api/predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 50\r\n\r\n{")
            assert slow.recv(65536).startswith(b"HTTP/1.1 408")
        found = [client.get("/api/about", headers={"X-Forwarded-For": f"1.2.3.{i}"}) for i in range(20)]
        assert [answer.status_code for answer in found].count(200) in (9, 10)  # 12, less three, and what came back
        refused(found[-1], 429)
        assert int(found[-1].headers["Retry-After"]) >= 1


def test_one_client_cannot_hold_all_places(pictures):
    limits = Limits(seconds=20, at_once_each=2)
    with serving(create_app(pictures, limits=limits, samples=False)) as url:
        port = int(url.rsplit(":", 1)[1])
        held = [socket.create_connection(("127.0.0.1", port)) for _ in range(2)]
        for one in held:
            one.sendall(b"POST /api/predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 50\r\n\r\n{")
        time.sleep(0.3)
        refused(httpx.get(f"{url}/api/about"), 429)
        for one in held:
            one.close()
        time.sleep(0.3)
        assert httpx.get(f"{url}/api/about").status_code == 200


def test_a_bucket_refills_at_its_rate_and_few_are_kept():
    now = 0.0
    buckets = Buckets(Limits(burst=4, rate=2, clients=3), clock=lambda: now)
    assert [buckets.wait("a", 1) for _ in range(5)] == [0, 0, 0, 0, 0.5]
    now = 0.5
    assert buckets.wait("a", 1) == 0
    assert buckets.wait("a", 3) == 1.5
    now = 100.0
    assert [buckets.wait("a", 4), buckets.wait("a", 1)] == [0, 0.5]  # never more than the burst
    for client in "bcdefg":
        buckets.wait(client, 1)
    assert len(buckets.kept) == 3


# --- the schema ---


@pytest.mark.slow
@pytest.mark.parametrize("mode", schemathesis.GenerationMode)
@pytest.mark.parametrize("served", ["picture_url", "table_url"])
def test_every_call_keeps_to_the_schema(request, served, mode):
    load_all_checks()
    schema = schemathesis.openapi.from_url(f"{request.getfixturevalue(served)}/api/openapi.json")
    called = set()
    for found in schema.get_all_operations():
        operation = found.ok()

        @given(operation.as_strategy(mode))
        @settings(max_examples=20, deadline=None, database=None, suppress_health_check=list(HealthCheck))
        def call(case):
            called.add(case.path)
            case.call_and_validate(excluded_checks=[positive_data_acceptance])  # no schema can say what a picture is

        if mode == schemathesis.GenerationMode.POSITIVE or operation.method == "post":  # nothing is wrong about a GET
            call()
    assert {"/api/predict", "/api/attack"} <= called


# --- the command ---


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="Windows has no SIGINT to send to another process")
def test_the_command_says_where_and_ends_with_a_word(pictures):
    start = [sys.executable, "-m", "lipscale", "serve", pictures.folder, "--port", "0"]
    process = subprocess.Popen(start, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    url = re.search(r"http://127\.0\.0\.1:\d+", process.stdout.readline())[0]
    assert "lipscale" in httpx.get(url).text
    taken = subprocess.run([*start[:-1], url.rsplit(":", 1)[1]], capture_output=True, text=True)
    assert taken.returncode == 2
    assert len(taken.stderr.splitlines()) == 1
    assert "choose another --port" in taken.stderr
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert (process.returncode, said) == (0, "Stopped.\n")


def test_without_the_extra_it_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setattr(command, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=re.escape("needs fastapi and uvicorn: pip install 'lipscale[serve]'")):
        command.serve(tmp_path)


def test_beyond_this_machine_it_warns_and_answers_to_any_name(pictures, monkeypatch, capsys):
    served = []
    monkeypatch.setattr(command, "_listen", lambda host, port: socket.create_server(("127.0.0.1", 0)))
    monkeypatch.setattr(command, "_serve", lambda app, listening: served.append(app))
    command.serve(pictures.folder, host="0.0.0.0", port=0, samples=False)
    assert "there is no password" in capsys.readouterr().err
    command.serve(pictures.folder, host="127.0.0.1", port=0, samples=False)
    assert "Warning" not in capsys.readouterr().err
    assert [app.local for app in served] == [False, True]
    assert [is_local(host) for host in ("localhost", "::1", "127.8.9.1", "0.0.0.0", "192.168.0.1", "example.org")] == [
        *(True, True, True),
        *(False, False, False),
    ]


def test_an_interruption_is_the_end_and_no_fault(monkeypatch):
    def interrupted(*given, **more):
        raise KeyboardInterrupt

    monkeypatch.setattr(uvicorn.Server, "run", interrupted)
    with pytest.raises(Stopped) as end:
        command._serve(None, None)
    assert end.value.exit_code == 0


# --- the page ---


def opened(browser, url, **options):
    """A page that has answered for its first sample and attacked it."""
    page, troubles = visit(browser, url, **options)
    page.wait_for_selector("#outcome-badge:not(:text('not tried yet'))")
    return page, troubles


@pytest.mark.slow
def test_a_picture_in_a_browser(browser, picture_url, tmp_path):
    page, troubles = opened(browser, picture_url)
    picture = samples_of(picture_url)[5]["picture"]
    expected = ask(picture_url, "predict", {"picture": picture})
    (tmp_path / "p.png").write_bytes(base64.b64decode(picture))
    page.set_input_files("#file", tmp_path / "p.png")
    page.wait_for_function("text => document.getElementById('seen').src.endsWith(text)", arg=expected["seen"])
    assert page.inner_text("#label") == expected["label"]
    assert page.locator("#bars li").count() == 10
    assert f"{expected['radius']:.4g}" in page.inner_text("#promise")
    assert page.locator("#size-pictures img").count() == 4
    move(page, "epsilon", 40)
    first = expected["classes"][0]
    assert f"{expected['epsilons'][40]:.4g}" == page.inner_text("#epsilon-value")
    assert f"{100 * first['lowest'][40]:.1f} %" in page.inner_text("#epsilon-text")
    assert "the class may change" in page.inner_text("#epsilon-text")
    move(page, "force", 90)
    page.wait_for_selector("#outcome-text:has-text('As proven')")
    move(page, "force", 500)
    page.wait_for_selector("#outcome-badge.bad, #outcome-badge.open")
    (tmp_path / "bad.png").write_bytes(b"no picture")
    assert troubles == []
    page.set_input_files("#file", tmp_path / "bad.png")
    page.wait_for_selector(".stale #trouble:has-text('cannot read the picture')")  # the answer is about another one


@pytest.mark.slow
def test_a_row_in_a_browser_and_names_that_are_markup_stay_text(browser, table_url):
    page, troubles = opened(browser, table_url)
    assert page.title().startswith("lipscale")
    kinds = page.eval_on_selector_all("#row input, #row select", "fields => fields.map((f) => f.type)")
    assert kinds == ["number", "number", "select-one", "date"]
    assert page.inner_text("#row label").strip() == SCRIPT
    sample = samples_of(table_url)[1]["row"]
    page.locator("#thumbs button").nth(1).click()
    page.wait_for_function("() => document.querySelectorAll('#row input')[1].value !== ''")
    page.locator("#row input").nth(1).fill("1234.5")
    page.locator("#row select").select_option("blue")
    expected = ask(table_url, "predict", {"row": {**sample, "b": 1234.5, "kind": "blue"}})
    page.wait_for_selector(f"#promise:has-text('{expected['radius']:.4g}')")
    assert page.inner_text("#label") == expected["label"]
    assert page.locator("#rooms li").count() == len(expected["columns"])
    page.wait_for_selector("#moves tbody tr")
    assert page.locator("script").count() == 1
    assert troubles == []


@pytest.mark.slow
@pytest.mark.parametrize(("width", "scheme"), [(360, "light"), (1280, "dark")])
def test_the_page_fits_phones_and_follows_dark_mode(browser, picture_url, table_url, width, scheme):
    for url in (picture_url, table_url):
        page, troubles = opened(browser, url, viewport={"width": width, "height": 800}, color_scheme=scheme)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert is_dark(page) == (scheme == "dark")
        assert troubles == []
