"""The settings as command-line flags: written once, in Settings, where they are documented and checked."""

import inspect
from typing import Annotated, Any, Literal, get_args, get_origin

import typer

from lipscale.cli.wording import as_commands
from lipscale.settings import Settings

# the heading of --help under which each setting and those after it stand
HELP_GROUPS = {
    "data": "Data",
    "model": "Network",
    "method": "LiST",
    "batch_size": "Optimizer",
    "seed": "Run",
}


# what stands for a value in --help, by the first word that its type has
METAVARS = {
    "tuple[str": "NAMES",
    "tuple": "NUMBERS",
    "Path": "PATH",
    "bool": "true|false",
    "int": "N",
    "float": "NUMBER",
    "str": "TEXT",
}


def with_settings_as_flags(command: Any) -> Any:
    """Give the command one flag for each setting, beside its own."""
    *own, _ = inspect.signature(command).parameters.values()  # the last one takes the settings
    annotations: dict[str, Any] = {parameter.name: parameter.annotation for parameter in own}
    group = ""
    for name, field in Settings.model_fields.items():
        group = HELP_GROUPS.get(name, group)
        default = "" if field.default is None else f" [default: {_shown(field.default)}]"
        choices = get_args(field.annotation) if get_origin(field.annotation) is Literal else None
        kind = next((metavar for word, metavar in METAVARS.items() if word in str(field.annotation)), "VALUE")
        metavar = "|".join(choices) if choices else kind
        # text all the way: Settings checks it and names the flag, as it does for YAML
        option = typer.Option(metavar=metavar, help=as_commands(f"{field.description}{default}"), rich_help_panel=group)
        annotations[name] = Annotated[str | None, option]
    keyword = inspect.Parameter.KEYWORD_ONLY
    command.__signature__ = inspect.Signature(
        [inspect.Parameter(n, keyword, default=None, annotation=a) for n, a in annotations.items()]
    )
    command.__annotations__ = annotations
    return command


def _shown(value: Any) -> str:
    return ",".join(f"{v:.4g}" for v in value) if isinstance(value, tuple) else str(value)
