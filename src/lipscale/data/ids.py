"""Columns that tell rows apart, such as ids: a network can learn from them only which rows it has seen."""

import re

import numpy as np

LEAST_ROWS = 20  # fewer may well be different by chance
# id, customer_id, PassengerId, but not paid
NAMED = re.compile(r"(?:^|[\W_\d])(?:id|uuid|guid)$|[a-z]I[dD]$", re.ASCII)


def is_id(name: str, numbers: np.ndarray) -> bool:
    """Whether whole numbers count the rows, or are different in each and called an id."""
    if not tells_rows_apart(numbers):
        return False
    called = NAMED.search(name) or NAMED.search(name.lower())
    return bool(called or (np.diff(numbers) == 1).all())


def tells_rows_apart(numbers: np.ndarray) -> bool:
    """Whether these are whole numbers, and different in each row."""
    some = numbers[:1000]  # most columns are told by these
    return (
        len(numbers) >= LEAST_ROWS
        and bool((some == np.floor(some)).all())
        and len(np.unique(some)) == len(some)
        and bool((numbers == np.floor(numbers)).all())
        and len(np.unique(numbers)) == len(numbers)
    )
