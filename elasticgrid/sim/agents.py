"""What simulated agents do: they train in rounds, report samples, commit checkpoints, drain and leave."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from elasticgrid.core import events as ev
from elasticgrid.core.errors import NotFound
from elasticgrid.core.grid import JobKey
from elasticgrid.core.job import JobState
from elasticgrid.core.samples import MAX_BATCH, SAMPLE_VERSION, SampleBatch, StepSample
from elasticgrid.sim.machines import Timings
from elasticgrid.sim.training import SimulatedNode, SimulatedRound, StepTimes, Training


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
        timings: how long things take.

    Attributes:
        workloads: what each job trains.
        nodes: machines that exist, by job and id.
        rounds: the last round of each job that is not over.
    """

    def __init__(self, host: Host, timings: Timings) -> None:
        self._host = host
        self._timings = timings
        self.workloads: dict[JobKey, Training] = {}
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
        self._host.at(self._timings.first_step_ms, lambda: self._first_step(key, running))

    def adopt(self, key: JobKey, state: JobState, step: int, committed: int) -> None:
        """Go on with the round that a job is in, of which `step` steps are done and `committed` kept.

        Nodes that train go on; those that have not taken a step of the round yet do; those that drain finish that.
        """
        if not state.round or state.spec is None:
            return
        running = SimulatedRound(state.round, state.member_nodes, state.spec.nproc_per_node, step)
        running.committed = committed
        self.rounds[key] = running
        leaving = tuple(node.id for node in state.nodes.values() if node.status == "leaving")
        drain = ev.DrainDecided(
            round=state.round, reason=state.drain_reason, leaving=leaving, grace_ms=state.drain_grace_ms
        )
        if state.phase in ("draining", "ending"):
            self.drain(key, drain)
        elif leaving:
            self._host.at(self._timings.commit_ms, lambda: self._leave(key, drain))
        if state.phase != "running":
            return
        if any(state.nodes[member].finished_round == state.round for member in state.member_nodes):
            running.over = True
            self._host.at(self._timings.commit_ms, lambda: self._report_finished(key, running))
        elif state.round_active_ms:
            self._train(key, running)
        else:
            self._host.at(self._timings.first_step_ms, lambda: self._first_step(key, running))

    def _whole(self, key: JobKey, running: SimulatedRound) -> bool:
        """Whether every member lives and none has failed."""
        nodes = [self.nodes.get((key, member)) for member in running.members]
        return all(node is not None and node.alive and node.failed_round != running.round for node in nodes)

    def _first_step(self, key: JobKey, running: SimulatedRound) -> None:
        if running.over or not self._whole(key, running):
            return
        first = self.workloads[key].step_times(self._host.now_ms, len(running.members), running.step + 1)
        self._publish(key, running, (first,))
        known = self._host.job(key).nodes
        for member in running.members:
            if known[member].started_round == running.round:
                continue
            self._host.append(
                key, ev.NodeStarted(node=member, round=running.round, step=running.step), actor=f"agent:{member}"
            )
        self._train(key, running)

    def _train(self, key: JobKey, running: SimulatedRound) -> None:
        """Steps until the next report."""
        if running.over or not self._whole(key, running):
            return
        steps = self._next_steps(self.workloads[key], running)
        if not steps:
            self._finish(key, running)
            return
        self._take(key, running, steps)

    def _take(self, key: JobKey, running: SimulatedRound, steps: Sequence[StepTimes]) -> None:
        """Take these steps, then report them and go on."""
        running.begin(self._host.now_ms, steps)
        report = running.reports

        def reported() -> None:
            if running.reports == report and not running.over:
                self._publish(key, running, steps)
                every = self.workloads[key].checkpoint_steps
                if every is not None and running.step % every == 0:
                    self._commit(key, running)
                self._train(key, running)

        self._host.at(sum(each.duration_ms for each in steps), reported)

    def _next_steps(self, workload: Training, running: SimulatedRound) -> list[StepTimes]:
        """The steps until the next report or checkpoint; none when the job is done."""
        every, total = workload.checkpoint_steps, workload.total_steps
        most = MAX_BATCH if total is None else min(total - running.step, MAX_BATCH)
        if every is not None:
            most = min(most, every - running.step % every)
        steps: list[StepTimes] = []
        spent_ms = 0
        while len(steps) < most:
            begin_ms, step = self._host.now_ms + spent_ms, running.step + len(steps) + 1
            times = workload.step_times(begin_ms, len(running.members), step)
            if steps and spent_ms + times.duration_ms > self._timings.report_ms:
                break
            steps.append(times)
            spent_ms += times.duration_ms
        return steps

    def interrupt(self, key: JobKey) -> None:
        """What was trained since the last report is reported, and no more is."""
        running = self.rounds[key]
        self._publish(key, running, running.done(self._host.now_ms))
        running.halt()

    def lengthen(self, key: JobKey, duration_ms: int) -> None:
        """The step under way takes so long, from now."""
        self.interrupt(key)
        running = self.rounds[key]
        if self._next_steps(self.workloads[key], running):
            self._take(key, running, (StepTimes(duration_ms=duration_ms),))
        else:
            self._train(key, running)

    def stall(self, key: JobKey, for_ms: int) -> None:
        """No step is taken for so long, unless the round ends before; the one under way is taken anew."""
        self.interrupt(key)
        running = self.rounds[key]
        report = running.reports

        def go_on() -> None:
            if running.reports == report:
                self._train(key, running)

        self._host.at(for_ms, go_on)

    def _publish(self, key: JobKey, running: SimulatedRound, steps: Sequence[StepTimes]) -> None:
        """Report steps of which the last one ends now."""
        if not steps:
            return
        workload = self.workloads[key]
        nodes = len(running.members)
        world_size = nodes * running.nproc_per_node
        tokens = workload.step_tokens(nodes) // world_size
        ends_ms = self._host.now_ms - sum(each.duration_ms for each in steps)
        samples = []
        for index, times in enumerate(steps):
            ends_ms += times.duration_ms
            samples.append(
                StepSample(
                    seq=running.seq + index,
                    step=running.step + 1 + index,
                    duration_s=times.duration_ms / 1000,
                    queue_s=times.queue_ms / 1000,
                    data_wait_s=times.data_wait_ms / 1000,
                    tokens=tokens,
                    nodes=nodes,
                    time_ms=ends_ms,
                    loss=workload.loss(running.step + 1 + index),
                )
            )
        for rank in range(world_size):
            batch = SampleBatch(version=SAMPLE_VERSION, round=running.round, rank=rank, samples=samples)
            self._host.publish(key, rank, batch)
        running.step += len(samples)
        running.seq += len(samples)

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
        self._report_finished(key, running)

    def _report_finished(self, key: JobKey, running: SimulatedRound) -> None:
        """Every node of a round that is done says so, unless it has."""
        known = self._host.job(key).nodes
        for member in running.members:
            if known[member].finished_round == running.round:
                continue
            finished = ev.NodeFinished(
                node=member, round=running.round, last_step=running.step, samples_published=running.seq
            )
            self._host.append(key, finished, actor=f"agent:{member}")

    def drain(self, key: JobKey, drain: ev.DrainDecided) -> None:
        """A round is to end: its nodes stop at the next step, commit and answer; those that leave do."""
        running = self.rounds.get(key)
        if running is None or running.over or drain.round != running.round:
            self._host.at(self._timings.commit_ms, lambda: self._leave(key, drain))
            return
        if not self._whole(key, running):
            running.over = True
            self._host.at(self._timings.commit_ms, lambda: self._drained(key, running, drain, clean=False))
            return
        now_ms = self._host.now_ms
        steps = running.steps[: len(running.done(now_ms)) + 1]
        wait_ms = max(running.until_ms(len(steps)) - now_ms, 0) if steps else 0
        in_time = wait_ms <= drain.grace_ms
        running.halt()

        def stopped() -> None:
            running.over = True
            clean = in_time and self._whole(key, running)
            if clean and steps:
                self._publish(key, running, steps)
                self._commit(key, running)
            self._host.at(self._timings.commit_ms, lambda: self._drained(key, running, drain, clean=clean))

        self._host.at(min(wait_ms, drain.grace_ms), stopped)

    def _drained(self, key: JobKey, running: SimulatedRound, drain: ev.DrainDecided, *, clean: bool) -> None:
        for member in running.members:
            node = self.nodes.get((key, member))
            said = self._host.job(key).nodes[member].drained_round == running.round
            if node is not None and node.alive and node.failed_round != running.round and not said:
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
