"""The data cursor: every sample of every epoch exactly once, whatever sizes the world takes, and the same for ever."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from itertools import islice
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from elasticgrid.core.errors import InvalidInput
from elasticgrid.publish import CyclingIterator, ElasticSampler
from elasticgrid.publish.permutation import Permutation

#: Worlds one after another: their size, the samples a rank takes in a step, and how many steps they take.
WORLDS = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 7), st.integers(0, 12)), max_size=8)


class World:
    """Ranks that train in step, each reading ahead of its training as a loader does."""

    def __init__(self, length: int, size: int, *, per_rank: int, state: dict[str, object] | None) -> None:
        self.size = size
        self.per_rank = per_rank
        self.samplers = [ElasticSampler(length, rank=rank, world_size=size, seed=5) for rank in range(size)]
        for sampler in self.samplers:
            if state is not None:
                sampler.load_state_dict(json.loads(json.dumps(state)))
        self.epoch: list[list[int]] = []

    def step(self) -> list[int]:
        """What all ranks together train on in one step; all take equally much, and never nothing."""
        if not self.epoch or not self.epoch[0]:
            self.epoch = [list(sampler) for sampler in self.samplers]
        shares = [samples[: self.per_rank] for samples in self.epoch]
        self.epoch = [samples[self.per_rank :] for samples in self.epoch]
        assert len({len(share) for share in shares}) == 1
        assert shares[0]
        for sampler in self.samplers:
            sampler.advance(len(shares[0]) * self.size)
        return [sample for share in shares for sample in share]

    def state(self) -> dict[str, object]:
        states = [sampler.state_dict() for sampler in self.samplers]
        assert all(state == states[0] for state in states)
        return states[0]


def assert_exactly_once(trained_on: list[int], length: int) -> None:
    """Whole epochs hold every sample once, and the last one that was begun none twice."""
    for begin in range(0, len(trained_on), length):
        epoch = Counter(trained_on[begin : begin + length])
        assert max(epoch.values()) == 1
        assert len(trained_on) - begin < length or len(epoch) == length


@pytest.mark.survive("R")
@given(st.integers(1, 60), WORLDS)
@example(1_000, [(2, 8, 25), (4, 8, 7), (3, 8, 11), (1, 8, 9), (7, 3, 60)])
@example(1, [(5, 3, 2), (2, 1, 3)])
def test_every_sample_of_every_epoch_is_trained_on_exactly_once_through_any_resizes(
    length: int, worlds: list[tuple[int, int, int]]
) -> None:
    trained_on: list[int] = []
    state = None
    for size, per_rank, steps in worlds:
        world = World(length, size, per_rank=per_rank, state=state)
        # Within a step the ranks' order is another; what was trained on is a set of places.
        for _ in range(steps):
            before = len(trained_on)
            trained_on += world.step()
            places = range(before, len(trained_on))
            assert sorted(trained_on[before:]) == sorted(world.samplers[0].sample_at(place) for place in places)
            trained_on[before:] = [world.samplers[0].sample_at(place) for place in places]
        state = world.state()
        assert state["position"] == len(trained_on)
    assert_exactly_once(trained_on, length)


@given(st.integers(1, 60), st.integers(1, 20), st.integers(0, 3), st.lists(st.integers(1, 9), min_size=1, max_size=30))
def test_global_batches_are_the_same_for_every_world_and_epochs_end_where_they_should(
    length: int, global_batch: int, epochs: int, sizes: list[int]
) -> None:
    state = ElasticSampler(length, seed=5).state_dict()
    batches: list[list[int]] = []
    alone = CyclingIterator(ElasticSampler(length, seed=5), global_batch=global_batch, epochs=epochs)
    for number in range(len(sizes) + epochs * length + 1):
        size = sizes[number % len(sizes)]
        shares: list[list[int]] = []
        for rank in range(size):
            sampler = ElasticSampler(length, rank=rank, world_size=size)
            cursor = CyclingIterator(sampler, global_batch=global_batch, epochs=epochs)
            cursor.load_state_dict(state)
            shares += islice(cursor, 1)
            after = cursor.state_dict()
        expected = next(alone, None)
        if expected is None:
            assert shares == []
            break
        state = after
        assert max(map(len, shares)) - min(map(len, shares)) <= 1
        assert Counter(sample for share in shares for sample in share) == Counter(expected)
        batches.append(expected)
    trained_on = [sample for batch in batches for sample in batch]
    assert len(trained_on) == epochs * length
    if epochs:
        assert_exactly_once(trained_on, length)


def test_without_a_number_of_epochs_batches_never_end_and_are_never_short() -> None:
    cursor = CyclingIterator(ElasticSampler(10), global_batch=7)
    assert [len(batch) for batch in islice(cursor, 30)] == [7] * 30


VECTORS = [
    ((10, 0, 0), [1, 5, 9, 3, 6, 8, 4, 2, 0, 7]),
    ((10, 0, 1), [5, 3, 9, 0, 2, 6, 1, 7, 4, 8]),
    ((10, 7, 0), [6, 7, 0, 2, 1, 3, 8, 5, 4, 9]),
    ((1_000, 42, 3), [641, 88, 889, 192, 806, 237, 931, 603, 7, 563]),
    ((2**40 + 5, -1, 10**6), [1_031_876_535_038, 1_093_557_085_865]),
]


@pytest.mark.parametrize(("what", "begins"), VECTORS)
def test_an_order_is_the_same_for_ever(what: tuple[int, int, int], begins: list[int]) -> None:
    length, seed, epoch = what
    permutation = Permutation(length, seed=seed, epoch=epoch)
    assert [permutation[place] for place in range(len(begins))] == begins


@given(st.integers(1, 3_000), st.integers(), st.integers(0, 10**9))
def test_an_order_holds_every_sample_once(length: int, seed: int, epoch: int) -> None:
    permutation = Permutation(length, seed=seed, epoch=epoch)
    assert len(permutation) == length
    assert sorted(permutation[place] for place in range(length)) == list(range(length))
    for place in (-1, length):
        with pytest.raises(IndexError):
            permutation[place]


def test_every_sample_comes_at_every_place_about_equally_often() -> None:
    length, epochs = 12, 6_000
    counts = Counter(
        (place, permutation[place])
        for epoch in range(epochs)
        for permutation in [Permutation(length, seed=0, epoch=epoch)]
        for place in range(length)
    )
    expected = epochs / length
    chi_squared = sum((counts[place, sample] - expected) ** 2 / expected for place in range(12) for sample in range(12))
    assert chi_squared < 180  # 121 degrees of freedom: beyond 180 is one in three thousand


def test_an_order_without_shuffling_is_that_of_the_data_set() -> None:
    sampler = ElasticSampler(5, rank=1, world_size=2, shuffle=False)
    assert len(sampler) == 3
    assert list(sampler) == [1, 3, 0]  # the last one is the next epoch's first


def test_reading_moves_nothing_and_reading_all_of_it_again_without_training_is_refused() -> None:
    sampler = ElasticSampler(6)
    assert list(islice(sampler, 3)) == list(islice(sampler, 3))
    assert len(list(sampler)) == 6
    with pytest.raises(InvalidInput, match="advance"):
        list(sampler)
    sampler.advance(6)
    assert (sampler.epoch, sampler.position) == (1, 6)
    assert len(list(sampler)) == 6


GOOD = ElasticSampler(10).state_dict()


@pytest.mark.parametrize(
    "state",
    [{}, {**GOOD, "position": -1}, {**GOOD, "position": "far"}, {**GOOD, "format": 2}, {**GOOD, "length": 11}],
)
def test_a_state_that_is_none_or_of_other_data_is_refused_and_changes_nothing(state: dict[str, object]) -> None:
    sampler = ElasticSampler(10, seed=3)
    sampler.advance(4)
    before = sampler.state_dict()
    with pytest.raises(InvalidInput):
        sampler.load_state_dict(state)
    assert sampler.state_dict() == before


def test_arguments_that_mean_nothing_are_refused() -> None:
    for make in (
        lambda: ElasticSampler(0),
        lambda: ElasticSampler(2**48 + 1),
        lambda: ElasticSampler(5, rank=2, world_size=2),
        lambda: ElasticSampler(5, rank=-1),
        lambda: ElasticSampler(5).advance(-1),
        lambda: CyclingIterator(ElasticSampler(5), global_batch=0),
    ):
        with pytest.raises(InvalidInput):
            make()


class WholeNumber:
    """A whole number of a library's own kind: all that is known of it is which."""

    def __init__(self, value: int) -> None:
        self._value = value

    def __index__(self) -> int:
        return self._value


def test_whole_numbers_of_libraries_are_taken_for_what_they_are() -> None:
    numpy = pytest.importorskip("numpy", reason="numpy is not installed: a trainer brings its own")
    plain = ElasticSampler(10, rank=1, world_size=2, seed=3)
    plain.advance(4)
    kinds: list[Any] = [numpy.int64, numpy.uint8, WholeNumber]
    for kind in kinds:
        sampler = ElasticSampler(kind(10), rank=kind(1), world_size=kind(2), seed=kind(3))
        sampler.advance(kind(4))
        assert list(sampler) == list(plain)
        assert json.dumps(sampler.state_dict()) == json.dumps(plain.state_dict())
        batches = CyclingIterator(sampler, global_batch=kind(3), epochs=kind(1))
        assert next(batches) == next(CyclingIterator(plain, global_batch=3, epochs=1))
        plain.load_state_dict(plain.state_dict() | {"position": 4})


def test_a_float_is_no_whole_number_and_what_it_was_given_for_is_said() -> None:
    wrong: list[tuple[str, Callable[[Any], object]]] = [
        ("length", ElasticSampler),
        ("rank", lambda value: ElasticSampler(5, rank=value)),
        ("world_size", lambda value: ElasticSampler(5, world_size=value)),
        ("seed", lambda value: ElasticSampler(5, seed=value)),
        ("samples", lambda value: ElasticSampler(5).advance(value)),
        ("global_batch", lambda value: CyclingIterator(ElasticSampler(5), global_batch=value)),
        ("epochs", lambda value: CyclingIterator(ElasticSampler(5), global_batch=2, epochs=value)),
        ("epoch", lambda value: Permutation(5, seed=0, epoch=value)),
    ]
    for name, call in wrong:
        with pytest.raises(InvalidInput, match="a whole number is wanted, not a float") as caught:
            call(5.0)
        assert (caught.value.where, caught.value.hint) == (name, f"int({name})")


def test_importing_the_sampler_loads_no_framework_and_no_bus_client() -> None:
    script = """
import sys
from elasticgrid.publish import ElasticSampler
loaded = {name.split(".")[0] for name in sys.modules}
assert not loaded & {"torch", "numpy", "nats", "msgspec"}, loaded
"""
    assert subprocess.run([sys.executable, "-c", script], timeout=60, check=False).returncode == 0


def test_a_torch_loader_with_workers_reads_every_sample_once_through_a_resize() -> None:
    data = pytest.importorskip("torch.utils.data", reason="torch is not installed: a trainer brings its own")
    samples = list(range(1_000))
    trained_on: list[int] = []
    state: dict[str, object] = {}
    for size, steps in [(2, 31), (3, 20), (1, 100)]:
        samplers = [ElasticSampler(1_000, rank=rank, world_size=size) for rank in range(size)]
        for sampler in samplers:
            if state:
                sampler.load_state_dict(state)
        loaders = [iter(data.DataLoader(samples, sampler=each, batch_size=8, num_workers=1)) for each in samplers]
        for _ in range(steps):
            batches = [batch for loader in loaders for batch in islice(loader, 1)]
            if not batches:
                break
            for batch in batches:
                trained_on += batch.tolist()
            for sampler in samplers:
                sampler.advance(len(batches[0]) * size)
        state = samplers[0].state_dict()
    assert sorted(trained_on) == samples
