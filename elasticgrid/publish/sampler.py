"""The data cursor: one position in one endless order of samples, the same for every size of the world.

Epoch e is the permutation of (seed, e), and epochs follow each other without a seam: position p is sample
`p % length` of epoch `p // length`. A step takes the next `global batch` positions, and rank r of w every w-th of them
from the r-th on. So what was trained on depends on the position alone, and a job that is resized, at any step, goes
on with the next sample: every sample of every epoch exactly once.

Where a world does not divide what is left of an epoch, the last step of the epoch is filled up from the beginning of
the next one, which then begins behind those: all ranks take equally many samples, none is left out and none is taken
twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from elasticgrid.core.errors import InvalidInput
from elasticgrid.publish.permutation import Permutation, whole

_FORMAT = 1


class ElasticSampler:
    """The rest of an epoch for one rank, as the `sampler` of a `torch.utils.data.DataLoader` or on its own.

    Iterating begins at the position and moves nothing: a loader reads ahead of the training. Say after each step, on
    every rank, what the world trained on::

        sampler = ElasticSampler(len(data), rank=pub.rank, world_size=pub.world_size)
        loader = DataLoader(data, sampler=sampler, batch_size=8)
        for batch in pub.data(loader):
            with pub.step():
                train(batch)
            sampler.advance(len(batch) * pub.world_size)

    Iterate once for each epoch. Keep `state_dict()` in every checkpoint; it says nothing of ranks or the world.

    Args:
        length: samples in the data set.
        rank, world_size: this worker and how many there are.
        seed: of the order.
        shuffle: False for the order of the data set.

    Raises:
        InvalidInput: there are no samples, or no such rank, or a number is no whole one.
    """

    def __init__(self, length: int, *, rank: int = 0, world_size: int = 1, seed: int = 0, shuffle: bool = True) -> None:
        length, seed = whole("length", length), whole("seed", seed)
        rank, world_size = whole("rank", rank), whole("world_size", world_size)
        if not 0 <= rank < world_size:
            raise InvalidInput("a rank is from 0 to below the size of its world", where=f"rank {rank} of {world_size}")
        self._length = length
        self._rank = rank
        self._world_size = world_size
        self._seed = seed
        self._shuffle = shuffle
        self._position = 0
        self._order = (0, Permutation(length, seed=seed, epoch=0))
        self._read_through_from = -1

    @property
    def length(self) -> int:
        """Samples in the data set."""
        return self._length

    @property
    def rank(self) -> int:
        """This worker among all of the world."""
        return self._rank

    @property
    def world_size(self) -> int:
        """Workers in the world."""
        return self._world_size

    @property
    def position(self) -> int:
        """How many samples the world was trained on, over all epochs."""
        return self._position

    @property
    def epoch(self) -> int:
        """The epoch that the position is in, from 0."""
        return self._position // self._length

    def __len__(self) -> int:
        """How many samples this rank takes from the position to the end of the epoch, the same on every rank."""
        return -(-(self._length - self._position % self._length) // self._world_size)

    def __iter__(self) -> Iterator[int]:
        """This rank's samples from the position to the end of the epoch.

        Raises:
            InvalidInput: the epoch was read to its end before and `advance` was not called since, so that all of it
                would be trained on again.
        """
        begin = self._position
        if self._read_through_from == begin:
            raise InvalidInput(
                "the samples from here to the end of the epoch were read, and `advance` was not called",
                where=f"position {begin}",
                hint="call sampler.advance(len(batch) * world_size) after each step",
            )
        for place in range(begin + self._rank, begin + len(self) * self._world_size, self._world_size):
            yield self.sample_at(place)
        if self._position == begin:
            self._read_through_from = begin

    def sample_at(self, position: int) -> int:
        """The index of the sample at a position, over all epochs."""
        epoch, place = divmod(position, self._length)
        if not self._shuffle:
            return place
        if self._order[0] != epoch:
            self._order = (epoch, Permutation(self._length, seed=self._seed, epoch=epoch))
        return self._order[1][place]

    def advance(self, samples: int) -> None:
        """The world was trained on so many samples more: on all ranks together, the same call on each.

        Raises:
            InvalidInput: less than none, or no whole number.
        """
        samples = whole("samples", samples)
        if samples < 0:
            raise InvalidInput("training does not go back", where=f"{samples} samples", hint="use load_state_dict")
        self._position += samples
        if samples:
            self._read_through_from = -1

    def state_dict(self) -> dict[str, Any]:
        """Where training stands, as plain values: for the checkpoint, and the same on every rank."""
        return {
            "format": _FORMAT,
            "length": self._length,
            "seed": self._seed,
            "shuffle": self._shuffle,
            "position": self._position,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state` was taken, in a world of any size; its seed and shuffle hold from then on.

        Raises:
            InvalidInput: it is no such state, or of a data set of another length.
        """
        try:
            form, length, seed, position = (int(state[name]) for name in ("format", "length", "seed", "position"))
            shuffle = bool(state["shuffle"])
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidInput(f"not the state of a sampler: {error!r}") from error
        if form != _FORMAT or position < 0:
            raise InvalidInput("not a state that is known here", where=f"format {form}, position {position}")
        if length != self._length:
            raise InvalidInput(
                f"the state is of a data set of {length} samples",
                where=f"a data set of {self._length} samples",
                hint="a data set that has changed begins a new order: make a new sampler",
            )
        self._seed, self._shuffle, self._position = seed, shuffle, position
        self._order = (0, Permutation(length, seed=seed, epoch=0))
        self._read_through_from = -1


class CyclingIterator:
    """This rank's share of one global batch after another, through the epochs, for loops without a loader.

    What was handed out counts as trained on: take `state_dict()` after the step and before the next batch. The global
    batch is the same for every world, so with a mean over it the training is too. A share has the first of the ranks
    one sample more where the world does not divide the batch. With `epochs`, the last batch is what is left, and a
    share may be empty.

    Args:
        sampler: the position, moved by this iterator.
        global_batch: samples of a step on all ranks together.
        epochs: after how many to end; None for never.

    Raises:
        InvalidInput: a batch of no samples, or a number that is no whole one.
    """

    def __init__(self, sampler: ElasticSampler, *, global_batch: int, epochs: int | None = None) -> None:
        global_batch = whole("global_batch", global_batch)
        if global_batch < 1:
            raise InvalidInput("a batch has at least one sample", where=f"global_batch {global_batch}")
        self._sampler = sampler
        self._global_batch = global_batch
        self._end = None if epochs is None else whole("epochs", epochs) * sampler.length

    def __iter__(self) -> CyclingIterator:
        return self

    def __next__(self) -> list[int]:
        """The indices of this rank's share of the next global batch."""
        sampler = self._sampler
        begin = sampler.position
        end = begin + self._global_batch
        if self._end is not None:
            end = min(end, self._end)
            if begin >= self._end:
                raise StopIteration
        share = [sampler.sample_at(place) for place in range(begin + sampler.rank, end, sampler.world_size)]
        sampler.advance(end - begin)
        return share

    def state_dict(self) -> dict[str, Any]:
        """As `ElasticSampler.state_dict`."""
        return self._sampler.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """As `ElasticSampler.load_state_dict`.

        Raises:
            InvalidInput: as there.
        """
        self._sampler.load_state_dict(state)
