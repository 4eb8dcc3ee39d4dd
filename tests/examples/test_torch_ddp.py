"""The PyTorch example without a control plane: alone, under torchrun, and in worlds of every size."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from elasticgrid import environment as env
from elasticgrid.publish import checkpoint
from elasticgrid.testing.bus import free_ports

torch = pytest.importorskip("torch", reason="torch is not installed: pip install torch==2.13.0")

pytestmark = [pytest.mark.torch, pytest.mark.process, pytest.mark.timeout(1_800)]

TOP: Final = Path(__file__).parents[2]
TRAINER: Final = TOP / "examples" / "torch_ddp" / "train.py"
GUIDE: Final = TOP / "docs" / "how-to" / "torch.md"
#: Importing torch takes seconds, on a machine that does much else many.
TIMEOUT_S: Final = 600


class Ranks:
    """Runs programs as the ranks of worlds on this machine, as an agent would."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.running: list[subprocess.Popen[str]] = []

    def start(self, command: Sequence[object], environ: Mapping[str, str]) -> subprocess.Popen[str]:
        own = {name: value for name, value in os.environ.items() if not name.startswith("ELASTICGRID_")}
        process = subprocess.Popen(
            [str(word) for word in command],
            env={**own, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", **environ},
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.running.append(process)
        return process

    def run(self, command: Sequence[object], environ: Mapping[str, str] | None = None) -> str:
        """One process to its end; what it said."""
        return self.ended([self.start(command, environ or {})])[0]

    def world(self, size: int, command: Sequence[object], environ: Mapping[str, str]) -> list[str]:
        """A world to its end; what each rank said."""
        (port,) = free_ports(1)
        where = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), **environ}
        return self.ended([self.start(command, {"RANK": str(rank), **where}) for rank in range(size)])

    def ended(self, processes: list[subprocess.Popen[str]]) -> list[str]:
        said = [process.communicate(timeout=TIMEOUT_S)[0] for process in processes]
        assert [process.returncode for process in processes] == [0] * len(processes), "\n".join(said)
        return said


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[Ranks]:
    runner = Ranks(tmp_path)
    yield runner
    for process in runner.running:
        if process.poll() is None:
            process.kill()
        process.communicate()


def losses(said: str) -> list[float]:
    return [float(loss) for loss in re.findall(r"loss ([0-9.]+)", said)]


def model_in(folder: Path) -> dict[str, Any]:
    uri = checkpoint.latest(folder)
    assert uri is not None
    state: dict[str, Any] = torch.load(io.BytesIO(checkpoint.load(uri)["state.pt"]), weights_only=True)
    return state


def test_it_learns_alone_and_torchrun_starts_it_as_it_is(ranks: Ranks, tmp_path: Path) -> None:
    options = ["--epoch-steps", 100, "--checkpoint-dir", "checkpoints"]
    (alone,) = losses(ranks.run([sys.executable, TRAINER, *options]))
    assert alone < 3.2  # 256 bytes that are as likely as each other would be 5.5
    launched = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", 2, "--master-port", *free_ports(1)]
    assert re.search(r"^step 100: loss .* world of 2$", ranks.run([*launched, TRAINER, *options]), re.MULTILINE)
    assert checkpoint.latest(tmp_path / "checkpoints") is not None


def test_worlds_of_two_three_and_one_after_another_train_the_model_that_one_world_trains(
    ranks: Ranks, tmp_path: Path
) -> None:
    def train(size: int, round_number: int, folder: str, *options: object, resume: str = "", step: int = 0) -> None:
        environ = {
            env.ROUND: str(round_number),
            env.CHECKPOINT_DIR: str(tmp_path / folder),
            env.RESUME_URI: resume,
            env.RESUME_STEP: str(step),
        }
        ranks.world(size, [sys.executable, TRAINER, "--checkpoint-every", 1_000, *options], environ)

    # Each world ends where its epochs do; the next one goes on with one epoch more.
    for number, size in enumerate((2, 3, 1), start=1):
        before = checkpoint.latest(tmp_path / "changing")
        options = ("--epoch-steps", 10, "--epochs", number)
        train(size, number, "changing", *options, resume=before or "", step=10 * (number - 1))
    train(1, 1, "same", "--epoch-steps", 10, "--epochs", 3)
    changed, same = model_in(tmp_path / "changing"), model_in(tmp_path / "same")
    assert changed["sampler"] == same["sampler"]
    for name, tensor in same["model"].items():
        assert torch.linalg.vector_norm(changed["model"][name] - tensor) <= 1e-9 * torch.linalg.vector_norm(tensor)


def test_a_global_batch_that_a_world_cannot_share_evenly_is_refused(ranks: Ranks) -> None:
    (port,) = free_ports(1)
    world = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    started = [
        ranks.start([sys.executable, TRAINER, "--global-batch", 9], {"RANK": str(rank), **world}) for rank in range(2)
    ]
    for process in started:
        said, _ = process.communicate(timeout=TIMEOUT_S)
        assert process.returncode == 1
        assert "a global batch of 9 cannot be shared among 2 workers" in said


def program(name: str) -> str:
    """A program of the guide."""
    found = re.search(rf"<!-- tested: {name} -->\n```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    assert found is not None
    return found[1]


def test_the_script_of_the_guide_runs_before_and_after_and_goes_on_in_another_world(
    ranks: Ranks, tmp_path: Path
) -> None:
    for name in ("torch_before", "torch_after"):
        (tmp_path / f"{name}.py").write_text(program(name))
    ranks.world(2, [sys.executable, "torch_before.py"], {})
    assert set(torch.load(tmp_path / "model.pt", weights_only=True)) == {"weight", "bias"}

    ranks.world(2, [sys.executable, "torch_after.py"], {env.CHECKPOINT_DIR: str(tmp_path / "whole")})
    whole = checkpoint.latest(tmp_path / "whole")
    assert whole is not None
    assert checkpoint.verify(whole).step == 3 * 240 // 24

    halfway = checkpoint.path_of(tmp_path / "whole", 20)
    environ = {
        env.CHECKPOINT_DIR: str(tmp_path / "resumed"),
        env.RESUME_URI: halfway,
        env.RESUME_STEP: "20",
    }
    ranks.world(3, [sys.executable, "torch_after.py"], environ)
    ours, theirs = model_in(tmp_path / "resumed"), model_in(tmp_path / "whole")
    assert ours["sampler"] == theirs["sampler"]
    for key, tensor in theirs["model"].items():
        assert torch.allclose(ours["model"][key], tensor, rtol=1e-9, atol=0.0), key
