"""What every rank gave to every step, in a file for each rank of each round."""

from __future__ import annotations

from pathlib import Path

import torch

import elasticgrid


class Journal:
    """A line for each step: its number, the loss over this rank's share, and the numbers of the samples.

    Args:
        folder: where the files go; empty for none.
    """

    def __init__(self, folder: str, pub: elasticgrid.Publisher) -> None:
        self._path = Path(folder, f"round-{pub.round}-rank-{pub.rank}.txt") if folder else None
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)

    def write(self, step: int, loss: float, samples: torch.Tensor) -> None:
        """Before the gradients are shared: what others take from this rank in a step is then written down."""
        if self._path is not None:
            with self._path.open("a") as file:
                file.write(f"{step} {loss!r} {' '.join(map(str, samples.tolist()))}\n")
