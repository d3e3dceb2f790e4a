"""Which data, and how to read them."""

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator

from lipscale._settings import Names, StageSettings


class DataSettings(StageSettings):
    """A named set or a user's own, and how a user's own is read."""

    data: str = Field(
        "digits",
        description="A data set's name (see `lipscale data list`), a folder of class folders with pictures, a .csv or "
        ".parquet table, or an .npz file.",
    )
    label: str | None = Field(None, description="The column of a table that names the class.")
    drop: Names = Field((), description="Columns of a table to leave out, such as id,name.")
    categories: Names = Field((), description="Columns that hold categories although they look like numbers.")
    test_data: Path | None = Field(None, description="The test part, if it is separate: of the same kind as `data`.")
    test_fraction: float = Field(0.2, gt=0, lt=1, description="Share held out for the test if there is no test part.")
    data_dir: Path | None = Field(None, description="Where sets lie; else $LIPSCALE_DATA and the system's folders.")
    limit: int | None = Field(None, ge=2, description="Train on a stratified subset of this many samples.")
    augmentation: Literal["auto", "none", "crop", "flip", "crop+flip"] = Field(
        "auto", description="Random crops and mirror images; auto takes what suits the data set and the model."
    )
    image_size: int | None = Field(
        None, ge=4, le=4096, description="Side of the squares to which pictures in folders are brought; default 64."
    )
    image_fit: Literal["crop", "stretch", "pad"] = Field(
        "crop", description="How: cut off what is too long, ignore the proportions, or add black."
    )
    image_color: Literal["auto", "grey", "rgb"] = Field(
        "auto", description="Read pictures in folders in grey or colour; auto takes grey where all of them are."
    )

    @field_validator("drop", "categories", mode="before")
    @classmethod
    def _names(cls, value: Any) -> Any:
        """A single name and "id,name" from a flag are welcome."""
        return tuple(part.strip() for part in value.split(",")) if isinstance(value, str) else value
