"""What simulated agents do: they train in rounds, report samples, commit checkpoints, drain and leave."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from elasticgrid.core import events as ev
from elasticgrid.core.errors import NotFound
from elasticgrid.core.grid import JobKey
from elasticgrid.core.job import JobState
from elasticgrid.core.samples import MAX_BATCH, SAMPLE_VERSION, SampleBatch, StepSample
from elasticgrid.testing.history_training import SimulatedNode, SimulatedRound, Workload

_FIRST_STEP_MS = 4_000
_COMMIT_MS = 900


class Host(Protocol):
    """The grid that the agents are part of."""

    now_ms: int

    def append(self, key: JobKey, data: ev.EventData, *, actor: str) -> ev.Event:
        """Record a fact about a job."""
        ...

    def publish(self, key: JobKey, rank: int, batch: SampleBatch) -> None:
        """Store a message of samples."""
        ...

    def at(self, after_ms: int, action: Callable[[], object]) -> None:
        """Do something after a while."""
        ...

    def job(self, key: JobKey) -> JobState:
        """The job as of now."""
        ...


class SimulatedAgents:
    """All agents of a grid.

    Args:
        host: the grid.
        report_ms: how often workers publish the samples of the steps in between.

    Attributes:
        workloads: what each job trains.
        nodes: machines that exist, by job and id.
        rounds: the last round of each job that is not over.
    """

    def __init__(self, host: Host, report_ms: int) -> None:
        self._host = host
        self._report_ms = report_ms
        self.workloads: dict[JobKey, Workload] = {}
        self.nodes: dict[tuple[JobKey, str], SimulatedNode] = {}
        self.rounds: dict[JobKey, SimulatedRound] = {}

    def running(self, key: JobKey) -> SimulatedRound:
        """The round of the job that runs now.

        Raises:
            NotFound: none does.
        """
        running = self.rounds.get(key)
        if running is None or running.over:
            raise NotFound(f"no round of {key[0]}/{key[1]} runs")
        return running

    def node(self, key: JobKey, node_id: str) -> SimulatedNode:
        """A node that lives.

        Raises:
            NotFound: it does not.
        """
        node = self.nodes.get((key, node_id))
        if node is None or not node.alive:
            raise NotFound(f"no node {node_id} of {key[0]}/{key[1]} runs")
        return node

    def begin(self, key: JobKey, world: ev.WorldDecided) -> None:
        """A world was decided: its nodes begin to train."""
        members = tuple(member.node for member in world.members)
        step = world.resume.step if world.resume is not None else 0
        running = SimulatedRound(world.round, members, world.nproc_per_node, step)
        self.rounds[key] = running
        self._host.at(_FIRST_STEP_MS, lambda: self._first_step(key, running))

    def _whole(self, key: JobKey, running: SimulatedRound) -> bool:
        """Whether every member lives and none has failed."""
        nodes = [self.nodes.get((key, member)) for member in running.members]
        return all(node is not None and node.alive and node.failed_round != running.round for node in nodes)

    def _first_step(self, key: JobKey, running: SimulatedRound) -> None:
        if running.over or not self._whole(key, running):
            return
        times = self.workloads[key].step_times(self._host.now_ms, len(running.members))
        self._publish(key, running, 1, times.duration_ms)
        for member in running.members:
            self._host.append(
                key, ev.NodeStarted(node=member, round=running.round, step=running.step), actor=f"agent:{member}"
            )
        self._train(key, running)

    def _train(self, key: JobKey, running: SimulatedRound) -> None:
        """Steps until the next report."""
        if running.over or not self._whole(key, running):
            return
        workload = self.workloads[key]
        left = workload.total_steps - running.step
        if left <= 0:
            self._finish(key, running)
            return
        duration_ms = workload.step_times(self._host.now_ms, len(running.members)).duration_ms
        steps = min(max(self._report_ms // duration_ms, 1), left, MAX_BATCH)
        every = workload.checkpoint_steps
        steps = min(steps, every - running.step % every)
        running.begin(self._host.now_ms, duration_ms)
        report = running.reports

        def reported() -> None:
            if running.reports == report and not running.over:
                self._publish(key, running, steps, duration_ms)
                if running.step % every == 0:
                    self._commit(key, running)
                self._train(key, running)

        self._host.at(steps * duration_ms, reported)

    def interrupt(self, key: JobKey) -> None:
        """What was trained since the last report is reported, and no more is."""
        running = self.rounds[key]
        done = running.done(self._host.now_ms)
        if done:
            self._publish(key, running, done, running.duration_ms)
        running.reports += 1
        running.begun_ms = 0

    def _publish(self, key: JobKey, running: SimulatedRound, steps: int, duration_ms: int) -> None:
        workload = self.workloads[key]
        nodes = len(running.members)
        times = workload.step_times(self._host.now_ms, nodes)
        world_size = nodes * running.nproc_per_node
        samples = [
            StepSample(
                seq=running.seq + index,
                step=running.step + 1 + index,
                duration_s=duration_ms / 1000,
                queue_s=times.queue_ms / 1000,
                data_wait_s=times.data_wait_ms / 1000,
                tokens=workload.tokens_per_step // world_size,
                nodes=nodes,
                time_ms=self._host.now_ms - (steps - 1 - index) * duration_ms,
                loss=workload.loss(running.step + 1 + index),
            )
            for index in range(steps)
        ]
        for rank in range(world_size):
            batch = SampleBatch(version=SAMPLE_VERSION, round=running.round, rank=rank, samples=samples)
            self._host.publish(key, rank, batch)
        running.step += steps
        running.seq += steps

    def _commit(self, key: JobKey, running: SimulatedRound) -> None:
        if running.committed >= running.step:
            return
        running.committed = running.step
        node = running.members[0]
        checkpoint = ev.CheckpointRef(
            step=running.step, uri=f"file:///checkpoints/{key[1]}/step-{running.step:010d}", bytes=4_096
        )
        committed = ev.NodeCheckpointed(node=node, round=running.round, checkpoint=checkpoint)
        self._host.append(key, committed, actor=f"agent:{node}")

    def _finish(self, key: JobKey, running: SimulatedRound) -> None:
        running.over = True
        self._commit(key, running)
        for member in running.members:
            finished = ev.NodeFinished(
                node=member, round=running.round, last_step=running.step, samples_published=running.seq
            )
            self._host.append(key, finished, actor=f"agent:{member}")

    def drain(self, key: JobKey, drain: ev.DrainDecided) -> None:
        """A round is to end: its nodes stop at the next step, commit and answer; those that leave do."""
        running = self.rounds.get(key)
        if running is None or running.over or drain.round != running.round:
            self._host.at(_COMMIT_MS, lambda: self._leave(key, drain))
            return
        if not self._whole(key, running):
            running.over = True
            self._host.at(_COMMIT_MS, lambda: self._drained(key, running, drain, clean=False))
            return
        running.reports += 1
        steps = running.done(self._host.now_ms) + 1 if running.begun_ms else 0
        wait_ms = max(running.begun_ms + steps * running.duration_ms - self._host.now_ms, 0) if running.begun_ms else 0

        in_time = wait_ms <= drain.grace_ms

        def stopped() -> None:
            running.over = True
            clean = in_time and self._whole(key, running)
            if clean and steps:
                self._publish(key, running, steps, running.duration_ms)
                self._commit(key, running)
            self._host.at(_COMMIT_MS, lambda: self._drained(key, running, drain, clean=clean))

        self._host.at(min(wait_ms, drain.grace_ms), stopped)

    def _drained(self, key: JobKey, running: SimulatedRound, drain: ev.DrainDecided, *, clean: bool) -> None:
        for member in running.members:
            node = self.nodes.get((key, member))
            if node is not None and node.alive and node.failed_round != running.round:
                drained = ev.NodeDrained(
                    node=member,
                    round=running.round,
                    last_step=running.step,
                    clean=clean,
                    free_port=node.next_port(),
                    samples_published=running.seq,
                )
                self._host.append(key, drained, actor=f"agent:{member}")
        self._leave(key, drain)

    def _leave(self, key: JobKey, drain: ev.DrainDecided) -> None:
        for node_id in drain.leaving:
            node = self.nodes.get((key, node_id))
            if node is not None and node.alive and self._host.job(key).nodes[node_id].joined_sequence:
                node.alive = False
                self._host.append(key, ev.NodeLeft(node=node_id, reason=drain.reason), actor=f"agent:{node_id}")
