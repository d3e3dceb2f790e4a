"""What to run: each run is known by its settings, so that tables and figures which need the same one share it."""

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from lipscale.certificates.robustness import AttackName
from lipscale.data import READERS
from lipscale.runs.settings_file import as_yaml
from lipscale.settings import Positive, Settings
from lipscale.settings import replace as change

# what decides where a run is made, not what comes out
OF_THE_MACHINE = ("out", "data_dir", "device")


@dataclass(frozen=True)
class AttackBudget:
    """What a finished run is attacked with."""

    __pydantic_config__ = ConfigDict(extra="forbid")  # it is a part of users' grids

    name: AttackName = "pgd"
    epsilon: Positive = 0.5
    samples: Annotated[int, Field(ge=1)] = 200


@dataclass(frozen=True)
class Planned:
    """A run to make: its settings, and what it takes over from another run, which then comes first.

    It `takes` the epochs that the other one needed, or L' = 1 / T* from the T* that the test set asked it for.
    """

    settings: Settings
    attack: AttackBudget | None = None
    follows: "Planned | None" = None
    takes: Literal["epochs", "lipschitz"] | None = None

    @cached_property
    def digest(self) -> str:
        """A short fingerprint of all that decides the run's result."""
        machine = {name: Settings.model_fields[name].default for name in OF_THE_MACHINE}
        text = as_yaml(change(self.settings, **machine)) + _state_of_files(self.settings)
        if self.follows is not None:
            text += f"{self.takes} of {self.follows.digest}"
        return hashlib.sha256(text.encode()).hexdigest()[:10]

    @property
    def name(self) -> str:
        """The run folder's name: what people look for first, then the fingerprint."""
        safe = re.sub(r"[^\w.=-]+", "_", describe(self).replace(" ", "-"))  # a user's file may be called anything
        return f"{safe}-{self.digest}"


@dataclass(frozen=True)
class Row:
    """A line of a table or a point of a figure: the same run under several seeds."""

    name: str
    runs: tuple[Planned, ...]
    group: str = ""


def _state_of_files(settings: Settings) -> str:
    """Where a user's own files lie and when they were last changed: other content is another run."""
    named = () if settings.data in READERS else (settings.data,)
    paths = [Path(path).expanduser().resolve() for path in (*named, settings.test_data) if path is not None]
    entries = [entry for path in paths if path.exists() for entry in (path, *(path.iterdir() if path.is_dir() else ()))]
    return "".join(f"{path} {(state := path.stat()).st_size} {state.st_mtime_ns}\n" for path in sorted(entries))


def describe(run: Planned) -> str:
    """A run in a few words, such as `cifar10 list xi=3 seed=1`."""
    settings = run.settings
    constant = settings.lipschitz if settings.lipschitz != 1 or settings.method == "fixed" else None
    parts = {
        settings.data.rsplit("/", 1)[-1]: True,
        settings.method: True,
        f"n={settings.limit}": settings.limit is not None,
        "retrained": run.takes == "lipschitz",
        f"L={constant or 1:g}": constant is not None and run.takes != "lipschitz",
        settings.objective: settings.objective != "offset",
        f"xi={settings.offset:g}": settings.offset,
        "phase1": settings.phase1_only,
        "restarted": settings.phase2_start == "restart",
        f"seed={settings.seed}": True,
    }
    return " ".join(part for part, shown in parts.items() if shown)


def shared(runs: Iterable[Planned]) -> list[Planned]:
    """Each run once, attacked if any item wants it attacked, and behind the run that it follows."""
    plan: dict[str, Planned] = {}

    def add(run: Planned) -> None:
        if run.follows is not None:
            add(run.follows)
        known = plan.setdefault(run.digest, run)
        if run.attack is not None and known.attack is None:
            plan[run.digest] = replace(known, attack=run.attack)

    for run in runs:
        add(run)
    return list(plan.values())
