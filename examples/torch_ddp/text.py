"""Real text that is on every machine: the licence and the library sources that ship with Python."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import torch
from torch.utils.data import Dataset


class Text(Dataset):  # type: ignore[misc] # torch is not typed where types are checked
    """Windows of bytes; sample `i` is the same window on every rank.

    Args:
        window_bytes: text of one sample.
        samples: how many there are; a number that the global batch divides, so that no step is shorter than others.
    """

    def __init__(self, window_bytes: int, samples: int) -> None:
        library = Path(sysconfig.get_path("stdlib"))
        text = b"\n".join(path.read_bytes() for path in [*library.glob("LICENSE*"), *sorted(library.glob("*.py"))])
        if len(text) <= window_bytes * samples:
            raise SystemExit(f"the text has {len(text)} bytes, {samples} samples need {window_bytes * samples + 1}")
        self._bytes = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
        self._window_bytes = window_bytes
        self._samples = samples

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, sample: int) -> tuple[int, torch.Tensor]:
        """Its number, and its bytes with the one that follows: each is to predict the next."""
        begin = sample * self._window_bytes
        return sample, self._bytes[begin : begin + self._window_bytes + 1]
