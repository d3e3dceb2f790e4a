"""What the settings of every stage share: frozen, checked, and named with their place where they are wrong."""

import difflib
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator

from lipscale.errors import UserError


def setting(default: Any, description: str, **limits: Any) -> Any:
    """A setting: its default, what people are told about it, and what it may be."""
    return Field(default, description=description, **limits)


class StageSettings(BaseModel):
    """The settings of one stage; a run's are those of all stages together."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @field_validator("*", mode="before")
    @classmethod
    def _no_truth_for_numbers(cls, value: Any, about: ValidationInfo) -> Any:
        """`seed: yes` is a slip and no number."""
        if isinstance(value, bool) and cls.model_fields[about.field_name or ""].annotation not in (bool, bool | None):
            raise ValueError("yes and no (true, false) are no value of this setting")
        return value

    def __init__(self, /, place_of: dict[str, str] | None = None, **values: Any) -> None:
        """`place_of` says where each value stands, such as a line of a file, for errors to name."""
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise UserError(_explain(type(self), error, values, place_of or {})) from None

    @classmethod
    def checked(cls, values: dict[str, Any], *, place: dict[str, str] | None = None) -> Self:
        """Checked settings from a mapping; an error names the key, its place and the nearest valid one."""
        return cls(place, **{str(key): value for key, value in values.items()})


def _explain(kind: type[BaseModel], error: ValidationError, values: dict[str, Any], place: dict[str, str]) -> str:
    first = error.errors()[0]
    key = str(first["loc"][0])
    where = f"{place[key]}: " if key in place else ""
    name = "" if where.startswith("--") else f"{key}: "  # a flag is a name already
    if first["type"] == "extra_forbidden":
        nearest = difflib.get_close_matches(key, kind.model_fields, n=1)
        hint = f"did you mean {nearest[0]!r}?" if nearest else "lipscale.Settings lists them all"
        return f"{where}unknown setting {key!r}; {hint}"
    message = first["msg"].removeprefix("Input ").removeprefix("Value error, ")
    if first["type"] == "literal_error":
        choices = first["ctx"]["expected"].replace("'", "").replace(" or ", ", ").split(", ")
        nearest = difflib.get_close_matches(str(values[key]), choices, n=1)
        message += f"; did you mean {nearest[0]!r}?" if nearest else ""
    return f"{where}{name}{message}, got {values.get(key)!r}"
