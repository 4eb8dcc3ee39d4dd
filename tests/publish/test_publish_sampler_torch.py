"""The data cursor as the sampler of PyTorch's own loader."""

from __future__ import annotations

from typing import Any

import pytest

from elasticgrid.publish import ElasticSampler

torch = pytest.importorskip("torch", reason="torch is not installed: pip install torch==2.13.0")

pytestmark = pytest.mark.torch

LENGTH = 120
GLOBAL_BATCH = 12


def loader(sampler: ElasticSampler, **more: Any) -> Any:
    """Batches of this rank's share, whose items are the numbers of the samples."""
    return torch.utils.data.DataLoader(
        torch.arange(LENGTH), sampler=sampler, batch_size=GLOBAL_BATCH // sampler.world_size, **more
    )


@pytest.mark.parametrize("workers", [0, 2])
def test_loaders_that_read_ahead_in_worlds_of_changing_size_give_every_sample_once_and_an_epoch_its_length(
    workers: int,
) -> None:
    reading: dict[str, Any] = {"num_workers": workers, "prefetch_factor": 2} if workers else {}
    state = ElasticSampler(LENGTH, seed=3).state_dict()
    trained_on: list[int] = []
    for world_size, steps in ((2, 3), (4, 2), (3, 4), (1, 1)):
        samplers = [ElasticSampler(LENGTH, rank=rank, world_size=world_size) for rank in range(world_size)]
        for sampler in samplers:
            sampler.load_state_dict(state)
        loaders = [loader(sampler, **reading) for sampler in samplers]
        left = (LENGTH - len(trained_on)) // GLOBAL_BATCH
        assert [len(each) for each in loaders] == [left] * world_size
        for _, shares in zip(range(steps), zip(*loaders, strict=True), strict=False):
            trained_on += [sample for share in shares for sample in share.tolist()]
            for sampler in samplers:
                sampler.advance(GLOBAL_BATCH)
        state = samplers[0].state_dict()
    assert sorted(trained_on) == list(range(LENGTH))
    assert ElasticSampler(LENGTH, seed=3).sample_at(0) in trained_on[:GLOBAL_BATCH]


def test_a_loader_takes_the_cursor_for_one_of_torchs_own_samplers_in_an_epoch_after_another() -> None:
    sampler = ElasticSampler(LENGTH, rank=1, world_size=2)
    epochs = []
    while sampler.epoch < 2:
        taken: list[int] = []
        for share in loader(sampler):
            taken += share.tolist()
            sampler.advance(GLOBAL_BATCH)
        epochs.append(taken)
    assert [len(taken) for taken in epochs] == [LENGTH // 2] * 2
    assert epochs[0] != epochs[1]
