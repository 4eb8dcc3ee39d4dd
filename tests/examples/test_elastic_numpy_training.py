"""The example trainer as real processes: worlds of different sizes on one line of steps."""

from __future__ import annotations

import io
import json
import re
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from elasticgrid.publish import checkpoint

pytestmark = pytest.mark.process

World = Callable[..., list[str]]

FAST = ("--phases", "1:100000", "--item-latency-s", "0.001", "--batch-per-rank", "8", "--checkpoint-every", "20")


def arrays(files: dict[str, bytes], name: str) -> dict[str, np.ndarray]:
    with np.load(io.BytesIO(files[name])) as stored:
        return {key: stored[key] for key in stored.files}


def latest(tmp_path: Path) -> str:
    uri = checkpoint.latest(tmp_path / "checkpoints")
    assert uri is not None
    return uri


@pytest.mark.survive("R", "resize")
def test_a_world_of_two_resumes_as_a_world_of_three_on_one_line_of_steps(tmp_path: Path, run_world: World) -> None:
    first = run_world(2, "--steps", "60", *FAST)
    halfway = latest(tmp_path)
    second = run_world(3, "--steps", "160", *FAST, round=2, resume_step=60, resume_uri=halfway)

    lineage = json.loads(checkpoint.load(latest(tmp_path))["lineage.json"])
    assert lineage["segments"] == [[1, 60, 1], [61, 160, 2]]
    assert lineage["items_taken"] == 60 * 16 + 100 * 24
    losses = [float(loss) for loss in re.findall(r"loss ([0-9.]+)", first[0] + second[0])]
    assert len(losses) == 8
    assert losses[0] > 3.5
    assert losses[-1] < losses[0] - 0.7


def test_stopping_and_resuming_gives_the_bits_of_a_run_that_did_not_stop(tmp_path: Path, run_world: World) -> None:
    run_world(2, "--steps", "20", *FAST)
    run_world(2, "--steps", "40", *FAST, round=2, resume_step=20, resume_uri=latest(tmp_path))
    resumed = checkpoint.load(latest(tmp_path))
    run_world(2, "--steps", "40", *FAST, round=3)
    uninterrupted = checkpoint.load(latest(tmp_path))

    assert json.loads(uninterrupted["lineage.json"])["segments"] == [[1, 40, 3]]
    for name in ("model.npz", "adam.npz"):
        for key, value in arrays(uninterrupted, name).items():
            np.testing.assert_array_equal(arrays(resumed, name)[key], value, err_msg=f"{name} {key}")


@pytest.mark.parametrize("slow_link", [False, True], ids=["links as they come", "a link that is slow to be ready"])
def test_uneven_shares_average_to_what_one_rank_computes_alone(
    slow_link: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, example_on_path: None
) -> None:
    from iroh_tinker.comm import SocketTransport
    from model import LanguageModel
    from text import Text

    start_writer = SocketTransport._start_writer

    def start_slowly(transport: SocketTransport, connection: socket.socket) -> object:
        """Keeps every accepted link for long between "connected" and "can be written to"."""
        if threading.current_thread().name.startswith("socket-accept"):
            time.sleep(0.3)
        return start_writer(transport, connection)

    if slow_link:
        monkeypatch.setattr(SocketTransport, "_start_writer", start_slowly)
    monkeypatch.chdir(tmp_path)
    windows = [Text(64).window(item) for item in range(8)]

    def gradients(rank: int, shares: list[range]) -> dict[str, np.ndarray]:
        """A tenth of them: Adam's first moments after one update."""
        model = LanguageModel(rank, len(shares), str(tmp_path / f"world-of-{len(shares)}"), 2e-3)
        model.update([windows[item] for item in shares[rank]], 8)
        moments = arrays(model.state(), "adam.npz")
        return {name: value for name, value in moments.items() if name.startswith("m.")}

    shares = [range(5), range(5, 8), range(8, 8)]
    with ThreadPoolExecutor(3) as ranks:
        together = list(ranks.map(lambda rank: gradients(rank, shares), range(3), timeout=30))
    alone = gradients(0, [range(8)])
    for replica in together:
        for key, value in alone.items():
            np.testing.assert_allclose(replica[key], value, rtol=1e-3, atol=1e-8, err_msg=key)


def test_a_trainer_leaves_nothing_outside_its_folders(tmp_path: Path, run_world: World) -> None:
    run_world(2, "--steps", "3", *FAST)
    assert {path.name for path in tmp_path.iterdir()} == {"checkpoints", "rendezvous-1"}
