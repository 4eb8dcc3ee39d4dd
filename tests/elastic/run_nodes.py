"""Nodes of runs as real processes, and what they train."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncGenerator
from pathlib import Path

import msgspec

from elasticgrid.testing.processes import until

#: Trains in step with the other ranks until `finish` is there; says for every round and rank how it began.
TRAINER = """
import os, sys, time
from pathlib import Path
import elasticgrid
from elasticgrid.publish import checkpoint

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
number, node = int(os.environ["ELASTICGRID_ROUND"]), os.environ["ELASTICGRID_NODE"]
meet, out = Path(os.environ["ELASTICGRID_RENDEZVOUS_DIR"]), Path(sys.argv[1])
step = int(os.environ["ELASTICGRID_RESUME_STEP"])
pub = elasticgrid.publisher()

def say(name, text):
    draft = out / f".{name}"
    draft.write_text(text)
    draft.rename(out / name)

def last():
    if rank == 0 and (out / "finish").exists() and not (meet / "last").exists():
        (meet / ".last").write_text(str(step + 5))
        (meet / ".last").rename(meet / "last")
    return int((meet / "last").read_text()) if (meet / "last").exists() else None

say(f"round-{number}.rank-{rank}", f"{world} {step} {node} {os.getpid()}")
while not pub.should_stop():
    end = last()
    if end is not None and step >= end:
        break
    with pub.step(tokens=1):
        step += 1
        (meet / f"{step}-{rank}").touch()
        while not all((meet / f"{step}-{other}").exists() for other in range(world)):
            time.sleep(0.005)
        time.sleep(0.05)
if rank == 0:
    pub.checkpointed(step, checkpoint.write(os.environ["ELASTICGRID_CHECKPOINT_DIR"], step, {"s": b"x"}, round=number))
pub.close()
"""


class Began(msgspec.Struct, frozen=True):
    """How a worker of a round began."""

    world: int
    step: int
    node: str
    pid: int


class Node:
    """One `elasticgrid run`."""

    def __init__(self, process: asyncio.subprocess.Process, errors: Path, output: Path) -> None:
        self.process = process
        self._errors = errors
        self._output = output

    @property
    def said(self) -> str:
        """What it wrote on standard error."""
        return self._errors.read_text()

    @property
    def printed(self) -> str:
        """What it wrote on standard output."""
        return self._output.read_text()

    async def ended(self, timeout_s: float = 180.0) -> int:
        """Its exit code, when it has ended."""
        async with asyncio.timeout(timeout_s):
            return await self.process.wait()


class Nodes:
    """Starts nodes and ends all that are left."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.out = folder / "out"
        self.out.mkdir()
        self._started: list[Node] = []
        self._script = folder / "train.py"
        self._script.write_text(TRAINER)

    async def run(self, *words: str, **variables: str) -> Node:
        """Start `elasticgrid run` with these words in the folder."""
        number = len(self._started)
        errors, output = self.folder / f"node-{number}.err", self.folder / f"node-{number}.out"
        environ = {key: value for key, value in os.environ.items() if not key.startswith("ELASTICGRID_")}
        with errors.open("wb") as error_file, output.open("wb") as output_file:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "elasticgrid.cli.main", "run", *words),
                # What a node that is killed cannot clear away is then cleared away with the test.
                env=environ | {"TMPDIR": str(self.folder)} | variables,
                cwd=self.folder,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output_file,
                stderr=error_file,
            )
        node = Node(process, errors, output)
        self._started.append(node)
        return node

    async def train(self, *words: str) -> Node:
        """Start a node of a run of the trainer."""
        shared = self.folder / "shared"
        return await self.run(*words, "--shared-dir", str(shared), str(self._script), str(self.out))

    def began(self, round_number: int) -> dict[int, Began]:
        """How each rank of a round began."""
        found = {}
        for file in self.out.glob(f"round-{round_number}.rank-*"):
            world, step, node, pid = file.read_text().split()
            found[int(file.name.rsplit("-", 1)[1])] = Began(int(world), int(step), node, int(pid))
        return found

    async def whole(self, round_number: int, world: int) -> dict[int, Began]:
        """The same, when all have begun."""
        await until(lambda: len(self.began(round_number)) == world)
        return self.began(round_number)

    async def there(self, name: str) -> None:
        """Wait for a file in the folder."""
        await until((self.folder / name).exists)

    def finish(self) -> None:
        """Let the trainer end."""
        (self.out / "finish").touch()

    @property
    def pids(self) -> list[int]:
        """All workers that ever said that they began."""
        return [int(file.read_text().split()[3]) for file in self.out.glob("round-*.rank-*")]

    async def end(self) -> None:
        """End what runs and show what it said, for whoever looks at a failure."""
        for node in self._started:
            if node.process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    node.process.send_signal(signal.SIGTERM)
        for node in self._started:
            try:
                await node.ended(30)
            except TimeoutError:
                node.process.kill()
                await node.process.wait()
        for number, node in enumerate(self._started):
            sys.stderr.write(f"--- node {number}: {node.process.returncode}\n{node.said}\n")


@contextlib.asynccontextmanager
async def nodes_in(folder: Path) -> AsyncGenerator[Nodes]:
    """Nodes that are ended with the block."""
    nodes = Nodes(folder)
    try:
        yield nodes
    finally:
        await nodes.end()
