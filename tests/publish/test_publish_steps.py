"""Steps: what counts as one, what is measured, and that no argument can break a trainer."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

import elasticgrid
from elasticgrid import environment as env
from elasticgrid.core.samples import StepSample
from elasticgrid.publish.buffer import SampleBuffer
from elasticgrid.publish.publisher import Checkpointing

#: A bus that nothing listens at: samples stay buffered.
UNREACHABLE = {env.NATS_URL: "nats://127.0.0.1:9", env.TENANT: "t", env.JOB: "j"}


@pytest.fixture
def pub() -> Iterator[elasticgrid.Publisher]:
    hook = elasticgrid.publisher(UNREACHABLE)
    yield hook
    hook.close(0.0)


def test_an_exception_in_a_step_goes_through_and_the_step_was_not_done(pub: elasticgrid.Publisher) -> None:
    with pytest.raises(ZeroDivisionError), pub.step(tokens=1):
        _ = 1 // 0
    assert pub.steps_completed == 0
    assert pub.stats.buffered == 0
    with pub.step(tokens=1):
        pass
    assert pub.steps_completed == 1
    assert pub.stats.buffered == 1


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tokens", -1),
        ("tokens", "many"),
        ("tokens", None),
        ("tokens", math.inf),
        ("tokens", 10**30),
        ("queue_s", math.nan),
        ("queue_s", -0.1),
        ("queue_s", math.inf),
        ("queue_s", object()),
        ("data_wait_s", -1.0),
        ("data_wait_s", "long"),
        ("compute_s", math.nan),
        ("compute_s", "long"),
        ("loss", "low"),
        ("loss", [1, 2]),
    ],
)
def test_a_step_with_unusable_numbers_is_refused_counted_and_still_done(
    pub: elasticgrid.Publisher, name: str, value: object
) -> None:
    with pub.step(tokens=1) as step:
        setattr(step, name, value)
    assert pub.steps_completed == 1
    assert (pub.stats.refused, pub.stats.buffered) == (1, 0)
    assert "step 1" in pub.stats.problem


@pytest.mark.parametrize("loss", [math.nan, math.inf, None, 2, True])
def test_any_number_is_a_loss_and_so_is_none(pub: elasticgrid.Publisher, loss: float | None) -> None:
    with pub.step(tokens=1, loss=loss):
        pass
    assert (pub.stats.refused, pub.stats.buffered) == (0, 1)


def test_calls_with_unusable_arguments_are_refused_and_do_not_raise(pub: elasticgrid.Publisher) -> None:
    pub.checkpointed("ten", "/a")  # type: ignore[arg-type] # what a careless caller does
    pub.checkpointed(-1, "/a")
    pub.checkpointed(3, "")
    pub.checkpointed(3, None)  # type: ignore[arg-type] # likewise
    assert pub.stats.refused == 4


def test_a_loader_s_own_exception_reaches_the_trainer(pub: elasticgrid.Publisher) -> None:
    def loader() -> Iterator[int]:
        yield 1
        raise LookupError("the data set ended early")

    items = pub.data(loader())
    assert next(items) == 1
    with pytest.raises(LookupError):
        next(items)


def sample(buffer: SampleBuffer, step: int) -> None:
    buffer.add(step, 1.0, 0.0, 0.0, 1, 0.0, math.nan, 1.0, 0.0)


@pytest.mark.survive("S")
@given(st.integers(1, 20), st.integers(1, 8), st.lists(st.integers(-1, 30), max_size=40), st.booleans())
def test_the_buffer_is_bounded_drops_the_oldest_and_accounts_for_every_sample(
    room: int, batch: int, moves: list[int], lost: bool
) -> None:
    buffer = SampleBuffer(room + batch, batch=batch)
    added, settled, in_flight, last_seq = 0, 0, 0, -1
    for move in moves:
        if move >= 0:
            for _ in range(move):
                added += 1
                sample(buffer, added)
        elif in_flight:
            buffer.settle(in_flight, lost=lost)
            settled, in_flight = settled + in_flight * (not lost), 0
        else:
            taken: list[StepSample] = buffer.take()
            seqs = [each.seq for each in taken]
            assert seqs == sorted(seqs)
            assert all(seq > last_seq for seq in seqs)
            last_seq = seqs[-1] if seqs else last_seq
            in_flight = len(taken)
        assert buffer.unsent <= room + batch
        assert buffer.unsent + buffer.dropped + settled == added
    buffer.discard()
    assert buffer.unsent == in_flight
    assert in_flight + buffer.dropped + settled == added


def test_samples_beyond_the_buffer_are_dropped_and_counted(pub: elasticgrid.Publisher) -> None:
    for _ in range(10_000):
        with pub.step(tokens=1):
            pass
    stats = pub.stats
    assert stats.buffered + stats.dropped == 10_000
    assert stats.buffered <= 8_192
    assert pub.steps_completed == 10_000


def test_what_was_not_sent_counts_as_dropped_after_close(pub: elasticgrid.Publisher) -> None:
    for _ in range(5):
        with pub.step(tokens=1):
            pass
    assert not pub.flush(0.05)
    pub.close(0.1)
    assert (pub.stats.dropped, pub.stats.buffered, pub.stats.published) == (5, 0, 0)
    with pub.step(tokens=1):
        pass
    assert (pub.steps_completed, pub.stats.buffered, pub.active) == (6, 0, False)


@pytest.mark.parametrize(
    "numbers",
    [
        {"duration_s": -1.0},
        {"duration_s": math.nan},
        {"duration_s": "long"},
        {"duration_s": 1.0, "tokens": -1},
        {"duration_s": 1.0, "compute_s": math.inf},
    ],
)
def test_a_reported_step_with_unusable_numbers_is_refused_counted_and_still_done(
    pub: elasticgrid.Publisher, numbers: dict[str, float]
) -> None:
    pub.report(**numbers)
    assert (pub.steps_completed, pub.stats.refused, pub.stats.buffered) == (1, 1, 0)


def test_an_unusable_time_for_a_checkpoint_is_refused_and_its_step_is_sampled(pub: elasticgrid.Publisher) -> None:
    pub.report(duration_s=1.0, checkpoint_s="long")  # type: ignore[arg-type] # what a careless caller does
    assert (pub.steps_completed, pub.stats.refused, pub.stats.buffered) == (1, 1, 1)


def test_a_checkpoint_block_that_raises_lets_the_exception_through_and_tells_nothing(
    pub: elasticgrid.Publisher,
) -> None:
    def save(saving: Checkpointing) -> None:
        with saving:
            saving.uri = "/checkpoints/0"
            raise OSError("the disk is full")

    with pytest.raises(OSError, match="full"):
        save(pub.checkpoint())
    assert pub.stats.refused == 0
