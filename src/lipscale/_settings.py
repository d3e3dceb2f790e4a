"""What the settings of every stage share: each is frozen and checked, and a wrong one is named with its place."""

import difflib
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator

from lipscale.errors import UserError

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Names = tuple[str, ...]


class StageSettings(BaseModel):
    """The settings of one stage; a run's are those of all stages together."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @field_validator("*", mode="before")
    @classmethod
    def _no_truth_for_numbers(cls, value: Any, about: ValidationInfo) -> Any:
        """`seed: yes` is a slip and no number."""
        if isinstance(value, bool) and cls.model_fields[about.field_name or ""].annotation is not bool:
            raise ValueError("yes and no (true, false) are no value of this setting")
        return value

    @classmethod
    def checked(cls, values: dict[str, Any], *, place: dict[str, str] | None = None) -> Self:
        """Checked settings; an error names the key, its place and the nearest valid one."""
        try:
            return cls.model_validate({str(key): value for key, value in values.items()})
        except ValidationError as error:
            raise UserError(_explain(cls, error, values, place or {})) from None


def _explain(kind: type[BaseModel], error: ValidationError, values: dict[str, Any], place: dict[str, str]) -> str:
    first = error.errors()[0]
    key = str(first["loc"][0])
    where = f"{place[key]}: " if key in place else ""
    name = "" if where.startswith("--") else f"{key}: "  # a flag is a name already
    if first["type"] == "extra_forbidden":
        nearest = difflib.get_close_matches(key, kind.model_fields, n=1)
        hint = f"did you mean {nearest[0]!r}?" if nearest else f"known: {', '.join(kind.model_fields)}"
        return f"{where}unknown setting {key!r}; {hint}"
    message = first["msg"].removeprefix("Input ").removeprefix("Value error, ")
    if first["type"] == "literal_error":
        choices = first["ctx"]["expected"].replace("'", "").replace(" or ", ", ").split(", ")
        nearest = difflib.get_close_matches(str(values[key]), choices, n=1)
        message += f"; did you mean {nearest[0]!r}?" if nearest else ""
    return f"{where}{name}{message}, got {values.get(key)!r}"
