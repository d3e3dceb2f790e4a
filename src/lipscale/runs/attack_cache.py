"""Finished batches of a long attack, kept in a folder, so that a killed one goes on where it was."""

from collections.abc import Iterator, MutableMapping
from pathlib import Path

from torch import Tensor

from lipscale._files import load_tensors, save_tensors
from lipscale.errors import UserError


class KeptTensors(MutableMapping[str, Tensor]):
    """A mapping whose values are files, each written in one step."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}.safetensors"

    def __getitem__(self, key: str) -> Tensor:
        try:
            return load_tensors(self._path(key))[0]["value"]
        except UserError:  # it is not there, or damaged and as good as none: that batch is attacked again
            raise KeyError(key) from None

    def __setitem__(self, key: str, value: Tensor) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        save_tensors(self._path(key), {"value": value}, {})

    def __delitem__(self, key: str) -> None:
        self._path(key).unlink()

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(path.stem for path in self.folder.glob("*.safetensors")))

    def __len__(self) -> int:
        return len(list(iter(self)))
