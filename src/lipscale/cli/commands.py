"""The command line: its commands in one place, and what becomes of errors."""

import logging
import os
import sys
import time
from importlib.metadata import version as version_of
from typing import Annotated, NoReturn

import typer

from lipscale.cli import calibrate, conformal, data, experiments, export, outliers, predict, results, serve, training
from lipscale.cli.signals import Stopped, StopRequest, at_once
from lipscale.cli.wording import as_commands
from lipscale.errors import DivergedError, LostProcessError, UnsoundError, UserError

# what needs torch is imported inside the commands: it takes seconds, and --help should not
app = typer.Typer(
    help="Train classifiers that are calibrated and certifiably robust out of the box (LiST).\n\n"
    "Start with `lipscale train`: it trains on the embedded digits within a minute.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
data_app = typer.Typer(help="The data sets that lipscale knows.", no_args_is_help=True)
app.command()(training.with_settings_as_flags(training.train))
measures = (results.evaluate, predict.predict, calibrate.calibrate, conformal.conformal, outliers.ood)
for command in (*measures, results.audit, results.report, export.export, serve.serve):
    app.command()(command)
app.add_typer(data_app, name="data")
data_app.command("list")(data.list_data)
data_app.command("get")(data.get_data)
app.command()(training.with_settings_as_flags(experiments.compare, experiments.COMPARED))
app.command()(experiments.reproduce)
app.command()(experiments.sweep)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(version_of("lipscale"))
        raise typer.Exit


Version = Annotated[bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)]


@app.callback()
def _options(version: Version = False) -> None:
    pass


def main() -> None:
    """Run the command line; what the user can mend is one line on stderr and exit code 2."""
    # OpenMP's threads spin while they wait, which starves a small network where other programs use the cores too;
    # spinning only briefly costs nothing on an idle machine
    os.environ.setdefault("GOMP_SPINCOUNT", "3000")
    logging.getLogger("lipscale").addFilter(_in_flags)
    stopped = StopRequest()
    try:
        with at_once(stopped):
            code = app(standalone_mode=False)
        if stopped():  # typer makes a code of the interruption
            _stop()
    except Stopped as end:
        _end(str(end), end.exit_code)
    except (UserError, DivergedError) as error:
        _complain(str(error))
    except LostProcessError as error:
        _complain(str(error), is_shared=False)
    except UnsoundError as error:
        print(f"lipscale: {error}", file=sys.stderr)
        sys.exit(1)
    except BrokenPipeError:  # whoever read our output has seen enough
        sys.stderr.close()
        sys.exit(1)
    except OSError as error:  # a full disk, a folder that may not be written to
        _complain(str(error))
    except Exception as error:
        if stopped():  # a library that was interrupted while it was imported complains in its own way
            _stop()
        # a flag that does not exist, for one; typer has a click of its own, so known by what it can do
        if not hasattr(error, "format_message"):
            raise
        command = getattr(getattr(error, "ctx", None), "command_path", "lipscale")
        _complain(f"{error.format_message()} (see {command} --help)")
    except KeyboardInterrupt:
        _stop()
    sys.exit(code if isinstance(code, int) else 0)


def _in_flags(record: logging.LogRecord) -> bool:
    record.msg, record.args = as_commands(record.getMessage()), ()
    return True


def _stop() -> NoReturn:
    _end("lipscale: stopped", 130)


def _complain(message: str, *, is_shared: bool = True) -> NoReturn:
    _end(f"lipscale: {' '.join(as_commands(message).split())}", 2, is_shared=is_shared)


def _end(line: str, code: int, *, is_shared: bool = True) -> NoReturn:
    """Say how it ended; of processes that train together the first one does, for all."""
    if is_shared and "TORCHELASTIC_RUN_ID" in os.environ and os.environ["RANK"] != "0":
        time.sleep(2)  # torchrun ends them all when one has ended, and the first one has yet to speak
    else:
        print(line, file=sys.stderr)
    sys.exit(code)
