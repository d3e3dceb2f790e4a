"""Which network."""

from typing import Literal

from pydantic import Field

from lipscale._settings import StageSettings


class ModelSettings(StageSettings):
    """The topology, its size, and what it is built of."""

    model: Literal["auto", "mlp", "convnet", "resnet18"] = Field(
        "auto", description="The network; auto takes an MLP for tables and tiny images, else the convnet."
    )
    width: int | None = Field(
        None, ge=2, le=65536, description="Channels or units; default 64 (resnet18), 32 (convnet), 256 (mlp)."
    )
    depth: int = Field(3, ge=1, le=1000, description="Hidden layers of the MLP.")
    layers: Literal["fast", "reference"] = Field(
        "fast", description="Orthogonal layers: our own, or the slow ones of orthogonium and torchlip."
    )
    padding: Literal["zeros", "circular"] = Field("zeros", description="What convolutions see beyond the border.")
