"""The command that answers in a browser and over REST: serve."""

import os
import socket
import sys
from importlib.util import find_spec
from typing import Annotated, Any

import typer

from lipscale._log import errors_only
from lipscale.cli.results import DataDir, Device, RunFolder
from lipscale.cli.signals import Stopped
from lipscale.errors import UserError

CONNECTIONS = 256  # more are told to come later
OPEN_TO_ALL = (
    "Warning: {host} is not this machine alone. Whoever reaches the port can ask, there is no password and no "
    "encryption: put a proxy with both in front, or leave --host out."
)


def serve(
    run: RunFolder,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Where to listen; 0 takes a free one.")] = 8000,
    host: Annotated[str, typer.Option(help="The address to listen on; by default only this machine.")] = "127.0.0.1",
    open_page: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in a browser.")] = False,
    samples: Annotated[bool, typer.Option(help="Offer test samples, where the run's data are at hand.")] = True,
    data_dir: DataDir = None,
    device: Device = None,
) -> None:
    """Serve a run: a page to try it on, and the same over REST.

    Drop a picture or type a row, see all classes with their probabilities, how large the certified radius is, the range
    in which probabilities stay when the input changes, and an attack that tries to break it. Ctrl-C ends it. Needs the
    extra `serve`; the REST calls are in docs/SERVE.md and, as an OpenAPI schema, at /api/openapi.json.

        lipscale serve RUN --open
    """
    if missing := [name for name in ("fastapi", "uvicorn") if find_spec(name) is None]:
        raise UserError(f"lipscale serve needs {' and '.join(missing)}: pip install 'lipscale[serve]'")
    listening = _listen(host, port)  # before seconds go into loading
    with listening:
        from lipscale.runs import load
        from lipscale.serve import create_app
        from lipscale.serve.limits import is_local

        local = is_local(host)
        app = create_app(load(run, device=device), local=local, data_dir=data_dir, samples=samples)
        name = f"[{host}]" if ":" in host else host
        address = f"http://{name}:{listening.getsockname()[1]}"
        if not local:
            typer.echo(OPEN_TO_ALL.format(host=host), err=True)
        typer.echo(f"Serving {run} at {address} (Ctrl-C ends it)")
        sys.stdout.flush()
        if open_page:
            typer.launch(address)
        _serve(app, listening)


def _listen(host: str, port: int) -> socket.socket:
    """A socket that listens, or one clear line on why not."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind)
    except OSError as error:
        raise UserError(f"--host {host}: {error.strerror}; leave it out to serve this machine") from None
    try:
        if os.name == "posix":  # a port that was just left; on Windows this would take one that is in use
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen()
    except OSError as error:
        listening.close()
        raise UserError(f"cannot listen on {host}, port {port}: {error.strerror}; choose another --port") from None
    return listening


def _serve(app: Any, listening: socket.socket) -> None:
    """Answer until Ctrl-C."""
    import uvicorn

    # no proxy's word for who asks: limits would be anyone's to choose
    config = uvicorn.Config(
        app, log_level="error", access_log=False, proxy_headers=False, server_header=False, ws="none",
        limit_concurrency=CONNECTIONS, timeout_keep_alive=5, timeout_graceful_shutdown=2,
    )  # fmt: skip
    try:
        with errors_only():  # what is odd about an input its answer says
            uvicorn.Server(config).run(sockets=[listening])
    except KeyboardInterrupt:  # how it is meant to end
        raise Stopped("Stopped.", 0) from None
