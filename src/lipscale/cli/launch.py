"""`--processes N`: torchrun's own launcher, without its log, for N processes on this machine."""

import logging
import os
import signal
import sys
import uuid
from collections.abc import Iterator, Sequence

import typer

from lipscale.errors import UserError

OPTION = "--processes"


def launch(count: int, arguments: Sequence[str]) -> None:
    """Run this command line in so many processes that train together, and end as they do."""
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher import LaunchConfig, elastic_launch

    from lipscale.experiments.pool import CORES

    for name in logging.root.manager.loggerDict:
        if name.startswith("torch.distributed"):  # its lines would bury ours
            logging.getLogger(name).setLevel(logging.CRITICAL)
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, CORES // count)))
    here = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=count,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
    )
    try:
        elastic_launch(here, sys.executable)("-m", "lipscale", *_without_option(arguments))
    except SignalException as stopped:  # it has passed the signal on, and they have ended
        raise typer.Exit(128 + stopped.sigval) from None
    except ChildFailedError as failed:
        # one that was killed comes first: the others may have missed it and ended before all of them were looked at,
        # and whoever was left is asked to end by the launcher itself
        later = lambda code: code > 0 or code == -signal.SIGTERM  # noqa: E731
        number, failure = min(failed.failures.items(), key=lambda f: (later(f[1].exitcode), f[1].timestamp))
        if failure.exitcode > 0:  # it has said why
            raise typer.Exit(failure.exitcode) from None
        name = signal.Signals(-failure.exitcode).name
        raise UserError(f"process {number} was killed by {name}, and the others have ended, too") from None


def _without_option(arguments: Sequence[str]) -> Iterator[str]:
    rest = iter(arguments)
    for argument in rest:
        if argument == OPTION:
            next(rest, None)
        elif not argument.startswith(f"{OPTION}="):
            yield argument
