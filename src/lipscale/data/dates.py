"""Dates become numbers: days since 1970, the time of day as their fraction."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np

ISO = "iso"
DAYS = (
    "%d.%m.%Y",
    "%d/%m/%Y",
    "%m/%d/%Y",
    "%Y/%m/%d",
    "%d-%m-%Y",
    "%m-%d-%Y",
    "%Y-%m",
    "%d %b %Y",
    "%b %d, %Y",
    "%d-%b-%Y",
)
TIMES = ("", " %H:%M", " %H:%M:%S", " %I:%M %p")
# the first that fits is taken: where every day is below 13, the day comes first
FORMS = (ISO, *(day + time for day in DAYS for time in TIMES))
TRIED = 200  # texts that decide on the form
DAY = 24 * 3600 * 1e6  # in microseconds


def is_date(kind: Any) -> bool:
    """Whether a type of pyarrow's is one of dates."""
    import pyarrow.types as is_a

    return bool(is_a.is_date(kind) or is_a.is_timestamp(kind))


def days_of(column: Any) -> Any:
    """A column of dates as float64; what is null stays null."""
    import pyarrow as pa
    import pyarrow.compute as pc

    stamps = column.cast(pa.timestamp("us", getattr(column.type, "tz", None)), safe=False).cast(pa.int64())
    return pc.divide(stamps.cast(pa.float64(), safe=False), DAY)


def form_of(texts: Sequence[str]) -> str:
    """The form in which most of these texts are dates; empty where there is none."""
    some = texts[:TRIED]
    best = max(FORMS, key=lambda form: np.isfinite(parse_dates(some, form)).sum())
    return best if some and np.isfinite(parse_dates(some, best)).mean() >= 0.9 else ""


def is_ambiguous(texts: Sequence[str], form: str) -> bool:
    """Whether these dates are also dates with day and month exchanged, and others then."""
    if "%d" not in form or "%m" not in form:
        return False
    other = form.replace("%d", "%?").replace("%m", "%d").replace("%?", "%m")
    first, second = parse_dates(texts, form), parse_dates(texts, other)
    return bool(np.isfinite(second).all() and (first != second).any())


def parse_dates(texts: Sequence[str], form: str) -> np.ndarray:
    """The day of each text, NaN where it is no date of this form."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if form == ISO:
        return np.array([_iso(text) for text in texts], np.float64)
    found = pc.strptime(pa.array(texts, pa.string()), format=form, unit="us", error_is_null=True)
    return np.array(days_of(found).to_numpy(zero_copy_only=False), np.float64)


def _iso(text: str) -> float:
    try:
        found = datetime.fromisoformat(text if "-" in text else "")  # 20240131 is a number
    except ValueError:
        return np.nan
    return (found.replace(tzinfo=found.tzinfo or UTC) - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * 1e6 / DAY
