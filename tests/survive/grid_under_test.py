"""A grid of real processes on this machine whose job is made to live through what jobs live through.

Use `grid_under_test` as an asynchronous context manager. Sizes are set with `resize`; a notice is given to one node, a
worker or a whole node is killed, the bus is away for a while; and in the end `finish` says what the log tells of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from elasticgrid import environment
from elasticgrid.bus.follower import Follower
from elasticgrid.bus.subjects import SAMPLES_ROOT, SAMPLES_STREAM, parse_sample_subject
from elasticgrid.core import events as ev
from elasticgrid.core.grid import GridFold
from elasticgrid.core.job import JobState
from elasticgrid.core.samples import decode_batch
from elasticgrid.core.spec import JobSpec
from elasticgrid.log.archive import ArchivedEvents, ArchivedSamples
from elasticgrid.log.export import export_archive
from elasticgrid.log.port import Scope
from elasticgrid.review.report import VerifyReport
from elasticgrid.review.summary import RunSummary, summarise
from elasticgrid.review.verify import verify_archive
from elasticgrid.runtime.run_processes import RunProcess, find_run
from elasticgrid.runtime.supervised_grid import SupervisedGrid

TENANT: Final = "default"
#: A SIGTERM to an agent is the notice that its node will be taken away after so long.
NOTICE_S: Final = 60.0
#: One provider that is this machine, with room for everything, for nothing and for good.
GRID_FILE: Final = f"""
providers:
  - name: here
    engine: local
    market: on_demand
    max_nodes: 8
    params: {{notices: signal, signal_notice_s: "{NOTICE_S:g}"}}
"""
_GONE_S: Final = 10.0
Found = Callable[[ev.Event], bool]


class CommittedLine(msgspec.Struct, frozen=True):
    """The steps that the job's result rests on.

    Attributes:
        rounds: of each round, the steps of the line it took: the first is `after + 1`, the last `through`.
        reported: how often rank 0 reported each step of the line, in the round the line took it in.
    """

    rounds: dict[int, tuple[int, int]]
    reported: dict[int, int]

    def holds(self, round_number: int, step: int) -> bool:
        """Whether this step of this round is in the line; what else was computed was lost."""
        after, through = self.rounds.get(round_number, (0, 0))
        return after < step <= through


class Finished(msgspec.Struct, frozen=True):
    """What the whole log says of a job that is over.

    Attributes:
        state: the job's fold.
        summary: its figures; `summary.duplicate_steps` and `summary.lost_steps` among them.
        report: what taking every decision again found.
        archive: the log and the samples.
    """

    outcome: ev.OutcomeDecided
    state: JobState
    summary: RunSummary
    report: VerifyReport
    line: CommittedLine
    archive: Path


def job_spec(name: str, command: list[str], workdir: Path, *, nodes: int, **more: Any) -> JobSpec:
    """A job that is `nodes` big until it is resized."""
    values: dict[str, Any] = {
        "min_nodes": nodes,
        "max_nodes": nodes,
        "grace_ms": 20_000,
        "max_restarts": 5,
        "env": {},
        **more,
    }
    values["env"] = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", **values["env"]}
    return JobSpec(name=name, command=tuple(command), workdir=str(workdir), **values)


class GridUnderTest:
    """What a test does to a grid, and what it can wait for.

    Attributes:
        grid: bus and services; `grid.kill("decider")` and so on, they come back by themselves.
    """

    def __init__(self, grid: SupervisedGrid) -> None:
        self.grid = grid

    # ----------------------------------------------------------------------------------------------------------------
    # What is asked for
    # ----------------------------------------------------------------------------------------------------------------

    async def submit(self, spec: JobSpec) -> str:
        """The id of the job."""
        async with self.grid.http() as http:
            answer = await http.post("/v1/jobs", content=msgspec.json.encode(spec))
        assert answer.is_success, answer.text
        return str(answer.json()["job"]["id"])

    async def resize(self, job: str, nodes: int) -> None:
        """The job is to be exactly this big from now on."""
        async with self.grid.http() as http:
            answer = await http.post(f"/v1/jobs/{job}/resize", json={"min_nodes": nodes, "max_nodes": nodes})
        assert answer.is_success, answer.text

    # ----------------------------------------------------------------------------------------------------------------
    # What is done to it
    # ----------------------------------------------------------------------------------------------------------------

    def agents(self, job: str) -> dict[str, RunProcess]:
        """The job's agents that run now, by node."""
        return {each.node: each for each in self._of(job) if each.is_agent}

    def workers(self, job: str, node: str) -> list[RunProcess]:
        """A node's workers that run now, without what they started themselves."""
        agent = self.agents(job)[node]
        return [each for each in self._of(job) if each.is_worker and each.parent == agent.pid]

    def _of(self, job: str) -> list[RunProcess]:
        return [each for each in self.grid.processes() if each.variables.get(environment.JOB) == job]

    def notice(self, job: str, node: str) -> None:
        """Tell this node that it will be taken away in `NOTICE_S`."""
        os.kill(self.agents(job)[node].pid, signal.SIGTERM)

    def kill_worker(self, job: str, node: str) -> int:
        """kill -9 of the node's first worker; its process number."""
        pid = self.workers(job, node)[0].pid
        os.kill(pid, signal.SIGKILL)
        return pid

    def kill_node(self, job: str, node: str) -> None:
        """kill -9 of everything on the node at once, as when its machine loses its power."""
        for each in self._of(job):
            if each.node == node:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(each.pid, signal.SIGKILL)

    async def cut_bus(self, for_s: float) -> None:
        """No bus for so long; then it is back on its old port with all it had."""
        await self.grid.bus.stop()
        await asyncio.sleep(for_s)
        await self.grid.bus.start()

    # ----------------------------------------------------------------------------------------------------------------
    # What can be waited for
    # ----------------------------------------------------------------------------------------------------------------

    async def event(self, job: str, found: Found, *, timeout_s: float = 120.0) -> ev.Recorded:
        """The first event of the job that is the one looked for; waits for it, whatever dies meanwhile."""
        try:
            async with asyncio.timeout(timeout_s):
                async for recorded in self.grid.log.follow(scope=Scope(TENANT, job)):
                    if not isinstance(recorded.event, ev.Event):
                        continue
                    if found(recorded.event):
                        return recorded
                    if isinstance(recorded.event.data, ev.OutcomeDecided):
                        break
        except TimeoutError as error:
            raise AssertionError(f"not seen in {timeout_s:g} s{await self._story(job)}") from error
        raise AssertionError(f"not seen before the job was over{await self._story(job)}")

    async def world(self, job: str, nodes: int, *, after_round: int = 0, timeout_s: float = 120.0) -> ev.WorldDecided:
        """The first world of so many nodes, after this round, of which every node has taken a step."""
        worlds: dict[int, ev.WorldDecided] = {}
        started: dict[int, set[str]] = {}

        def found(event: ev.Event) -> bool:
            data = event.data
            if isinstance(data, ev.WorldDecided):
                worlds[data.round] = data
            if not isinstance(data, ev.NodeStarted) or data.round not in worlds:
                return False
            nodes_started = started.setdefault(data.round, set())
            nodes_started.add(data.node)
            return data.round > after_round and len(worlds[data.round].members) == nodes == len(nodes_started)

        recorded = await self.event(job, found, timeout_s=timeout_s)
        assert isinstance(recorded.event, ev.Event)
        assert isinstance(recorded.event.data, ev.NodeStarted)
        return worlds[recorded.event.data.round]

    async def step(self, job: str, step: int, *, timeout_s: float = 120.0) -> None:
        """Wait until the samples tell of this step."""
        async with asyncio.timeout(timeout_s):
            subjects = f"{SAMPLES_ROOT}.{TENANT}.{job}.>"
            async with Follower(self.grid.client, SAMPLES_STREAM, subjects, lossy=True) as samples:
                async for message in samples:
                    batch = decode_batch(message.data)
                    if not isinstance(batch, str) and any(sample.step >= step for sample in batch.samples):
                        return

    async def _story(self, job: str) -> str:
        lines = ["; the job's events:"]
        async for recorded in self.grid.log.read(scope=Scope(TENANT, job)):
            event = recorded.event
            told = str(event.data if isinstance(event, ev.Event) else event)
            lines.append(f"{recorded.sequence} {told if len(told) < 400 else f'{told[:200]} ... {told[-200:]}'}")
        return "\n".join(lines)

    # ----------------------------------------------------------------------------------------------------------------
    # What came of it
    # ----------------------------------------------------------------------------------------------------------------

    async def finish(self, job: str, *, timeout_s: float = 240.0) -> Finished:
        """Wait until the job is over, and read what the log says of it. Every decision must come out the same again."""
        recorded = await self.event(job, lambda event: isinstance(event.data, ev.OutcomeDecided), timeout_s=timeout_s)
        assert isinstance(recorded.event, ev.Event)
        assert isinstance(recorded.event.data, ev.OutcomeDecided)
        archive = self.grid.data_dir / f"{job}.egz"
        await export_archive(self.grid.log, self.grid.client, archive, created_ms=0, with_samples=True)
        report = verify_archive(archive)
        assert (report.diverged, report.law_breaches) == (0, 0), report
        assert report.verified == report.decisions > 0, report
        fold = GridFold()
        for each in ArchivedEvents(archive):
            fold.apply(each)
        state = fold.job((TENANT, job))
        assert state is not None
        return Finished(
            outcome=recorded.event.data,
            state=state,
            summary=summarise(ArchivedEvents(archive), ArchivedSamples(archive), job=(TENANT, job)),
            report=report,
            line=committed_line(archive, job, recorded.event.data.last_step),
            archive=archive,
        )

    def checkpoints(self, state: JobState) -> Path:
        """The folder of the job's checkpoints."""
        assert state.checkpoint is not None
        return Path(state.checkpoint.uri.removeprefix("file://")).parent


def committed_line(archive: Path, job: str, last_step: int) -> CommittedLine:
    """The line of a job that ended with `last_step`.

    A round takes it from the checkpoint it resumed from to the one that the next round resumed from.
    """
    worlds = [
        recorded.event.data
        for recorded in ArchivedEvents(archive)
        if isinstance(recorded.event, ev.Event)
        and recorded.event.job == job
        and isinstance(recorded.event.data, ev.WorldDecided)
    ]
    begins = [world.resume.step if world.resume is not None else 0 for world in worlds]
    ends = [*begins[1:], last_step]
    rounds = {world.round: span for world, span in zip(worlds, zip(begins, ends, strict=True), strict=True)}
    line = CommittedLine(rounds, {})
    for message in ArchivedSamples(archive):
        batch = decode_batch(message.data)
        if parse_sample_subject(message.subject) != (TENANT, job) or isinstance(batch, str) or batch.rank != 0:
            continue
        for sample in batch.samples:
            if line.holds(batch.round, sample.step):
                line.reported[sample.step] = line.reported.get(sample.step, 0) + 1
    return line


@contextlib.asynccontextmanager
async def grid_under_test(
    folder: Path, *, grid_file: str = GRID_FILE, environ: Mapping[str, str] | None = None
) -> AsyncGenerator[GridUnderTest]:
    """A running grid with its files in `folder / "grid"`; at the end nothing of it runs, and that is checked.

    Raises:
        AssertionError: something was left behind by a block that ended well; it was killed.
    """
    file = _written(folder / "grid.yaml", grid_file)
    grid = SupervisedGrid(folder / "grid", file, orphan_timeout_s=_orphan_s(), environ=environ)
    try:
        async with grid:
            yield GridUnderTest(grid)
        left = await asyncio.to_thread(_left, grid.mark)
        assert not left, f"still run: {left}"
    finally:
        for each in find_run(grid.mark):
            with contextlib.suppress(ProcessLookupError):
                os.kill(each.pid, signal.SIGKILL)


def _written(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def _left(mark: str) -> list[RunProcess]:
    """What still runs after the moment that what is just ending may take."""
    deadline_s = time.monotonic() + _GONE_S
    while (left := find_run(mark)) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    return left


def bus_cut_s(default_s: float = 20.0) -> float:
    """How long proofs cut the bus: less than the minute it should be, unless the environment says otherwise."""
    return float(os.environ.get("GRID_TEST_BUS_CUT_S", default_s))


def _orphan_s() -> float:
    """Longer than any cut of the bus."""
    return bus_cut_s() + 120.0
