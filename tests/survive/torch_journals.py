"""What the ranks of the PyTorch example wrote down of their training, read back."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path

import msgspec


class JournalledStep(msgspec.Struct, frozen=True):
    """A step as all its ranks took it.

    Attributes:
        loss: the mean over the global batch, in nats per byte.
        samples: the numbers of its samples, in order.
    """

    loss: float
    samples: tuple[int, ...]


def journalled(folder: Path, holds: Callable[[int, int], bool]) -> dict[int, JournalledStep]:
    """The steps by number.

    Args:
        holds: says of a round and a step whether they count.

    Raises:
        AssertionError: a step was taken in two rounds that count, or twice by one rank.
    """
    parts: dict[int, dict[tuple[int, int], tuple[float, list[int]]]] = {}
    for path in folder.glob("round-*-rank-*.txt"):
        _, round_number, _, rank = path.stem.split("-")
        # A line that a kill cut short has no end.
        for line in path.read_text().split("\n")[:-1]:
            step, loss, *samples = line.split()
            if holds(int(round_number), int(step)):
                taken = parts.setdefault(int(step), {})
                by = (int(round_number), int(rank))
                assert by not in taken, f"step {step} was taken twice by rank {rank} in round {round_number}"
                taken[by] = (float(loss), [int(sample) for sample in samples])
    return {number: _together(number, ranks) for number, ranks in parts.items()}


def _together(number: int, ranks: dict[tuple[int, int], tuple[float, list[int]]]) -> JournalledStep:
    assert len({round_number for round_number, _ in ranks}) == 1, f"step {number} is in two rounds of the line"
    assert len({len(samples) for _, samples in ranks.values()}) == 1, f"the shares of step {number} are not equal"
    loss = statistics.fmean(loss for loss, _ in ranks.values())
    return JournalledStep(loss, tuple(sorted(sample for _, samples in ranks.values() for sample in samples)))


def last_step(folder: Path, round_number: int) -> int:
    """The last step that rank 0 wrote down in a round; 0 when there is none."""
    path = folder / f"round-{round_number}-rank-0.txt"
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return int(lines[-1].split()[0]) if lines else 0
