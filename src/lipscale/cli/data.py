"""The commands about data sets: data list | data get."""

from pathlib import Path
from typing import Annotated, Any

import typer

from lipscale.cli.wording import as_commands
from lipscale.errors import UserError


def list_data(
    data_dir: Annotated[Path | None, typer.Option(help="A folder to look in before the usual ones.")] = None,
) -> None:
    """List the data sets, where each was found, and how to get the others."""
    from rich.console import Console
    from rich.table import Table

    from lipscale.data import READERS, find_folder

    table = Table("name", "what it is", box=None, padding=(0, 2, 0, 0))
    table.add_column("where", overflow="fold")
    for name, reader in READERS.items():
        folder = find_folder(name, data_dir)
        where = "embedded" if not reader.layouts else str(folder) if folder else f"not found: {as_commands(reader.get)}"
        table.add_row(name, reader.about, where)
    Console().print(table)


def get_data(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A name from `lipscale data list`.")],
    data_dir: Annotated[Path | None, typer.Option(help="Where to put it; default ~/.local/share/lipscale.")] = None,
    mirror: Annotated[
        str | None, typer.Option(metavar="URL", help="Another address to get the same files from.")
    ] = None,
) -> None:
    """Download a public data set, check it and unpack it; a broken download is tried again."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    from lipscale.data import READERS
    from lipscale.data.download import get
    from lipscale.data.registry import DOWNLOADS, find_below

    if name not in READERS or not READERS[name].files:
        known = [name for name, found in READERS.items() if found.files]
        raise UserError(f"unknown data set {name!r}; to be had: {', '.join(known)}")
    target = data_dir or Path(DOWNLOADS).expanduser()
    if found := find_below(name, target):
        typer.echo(f"{name} is in {found} already.")
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True)) as bars:
        tasks: dict[str, Any] = {}

        def progress(file: str, done: int, total: int | None) -> None:
            if file not in tasks:
                tasks[file] = bars.add_task(file)
            bars.update(tasks[file], completed=done, total=total)

        folder = get(name, target, mirror=mirror, progress=progress)
    how = "" if data_dir is None else f" --data-dir {data_dir}"
    typer.echo(f"{name} is in {folder}. Train on it with: lipscale train --data {name}{how}")
