"""What simulated jobs train: how long a step takes, and a round of nodes that take steps together."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Protocol

import msgspec


class StepTimes(msgspec.Struct, frozen=True, kw_only=True):
    """A step's times, milliseconds: in all, waiting for a worker, and waiting for input."""

    duration_ms: int
    queue_ms: int = 0
    data_wait_ms: int = 0


class Training(Protocol):
    """What a job trains, as the simulation asks for it.

    Attributes:
        total_steps: the job is done after so many; None never ends by itself.
        checkpoint_steps: a checkpoint is committed after every so many steps; None only when a round ends.
    """

    @property
    def total_steps(self) -> int | None: ...  # noqa: D102 - see the class

    @property
    def checkpoint_steps(self) -> int | None: ...  # noqa: D102 - see the class

    def step_tokens(self, nodes: int) -> int:
        """Tokens of one step, over all ranks."""
        ...

    def step_times(self, now_ms: int, nodes: int, step: int) -> StepTimes:
        """The times of step number `step` if it begins now; durations are at least one millisecond."""
        ...

    def loss(self, step: int) -> float:
        """The training loss of a step; NaN when nobody knows."""
        ...


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """Training under a load that is told in nodes.

    Attributes:
        total_steps: the job is done after so many.
        step_ms: how long one node takes for a step; n nodes take an nth of it.
        demand: phases (duration_ms, how many nodes the load keeps busy), the last one stays; `repeat` begins anew.
        begin_ms: when the first phase begins, Unix milliseconds.
        tokens_per_step: over all ranks.
        checkpoint_steps: a checkpoint is committed after every so many steps.
    """

    total_steps: int = 200
    step_ms: int = 4_000
    demand: tuple[tuple[int, int], ...] = ((1, 1),)
    repeat: bool = False
    begin_ms: int = 1_750_000_000_000
    tokens_per_step: int = 65_536
    checkpoint_steps: int = 50

    def demand_at(self, now_ms: int) -> int:
        """How many nodes the load needs at a time."""
        since_ms = max(now_ms - self.begin_ms, 0)
        if self.repeat:
            since_ms %= sum(duration_ms for duration_ms, _ in self.demand)
        for duration_ms, nodes in self.demand:
            if since_ms < duration_ms:
                return nodes
            since_ms -= duration_ms
        return self.demand[-1][1]

    def step_tokens(self, nodes: int) -> int:  # noqa: ARG002 - the batch is shared out among the nodes
        """Tokens of one step, the same at every size."""
        return self.tokens_per_step

    def step_times(self, now_ms: int, nodes: int, step: int) -> StepTimes:  # noqa: ARG002 - all steps are alike
        """With too few nodes work queues for them, with too many they wait for work."""
        demand = self.demand_at(now_ms)
        busy_ms = max(self.step_ms // nodes, 1)
        if demand >= nodes:
            return StepTimes(duration_ms=busy_ms, queue_ms=busy_ms * (demand - nodes) // demand)
        duration_ms = max(self.step_ms // demand, busy_ms)
        return StepTimes(duration_ms=duration_ms, data_wait_ms=duration_ms - busy_ms)

    def loss(self, step: int) -> float:
        """A training loss that falls with every step."""
        return 6.0 / (1.0 + step / 100.0)


class SimulatedNode:
    """A machine with an agent on it."""

    def __init__(self, node_id: str, attempt: str, provider: str, first_port: int) -> None:
        self.id = node_id
        self.attempt = attempt
        self.provider = provider
        self.alive = True
        self.failed_round = 0
        self._port = first_port

    def next_port(self) -> int:
        """A port that is free now."""
        self._port += 1
        return self._port


class SimulatedRound:
    """Nodes that take steps together; `step` is how many are done and reported."""

    def __init__(self, number: int, members: tuple[str, ...], nproc_per_node: int, step: int) -> None:
        self.round = number
        self.members = members
        self.nproc_per_node = nproc_per_node
        self.step = step
        self.committed = step
        self.seq = 0
        self.over = False
        #: The steps under way, in order, and when the first of them began; empty while none is.
        self.steps: tuple[StepTimes, ...] = ()
        self.begun_ms = 0
        #: Counts reports; one that was planned under another count does not happen.
        self.reports = 0

    def begin(self, now_ms: int, steps: Sequence[StepTimes]) -> None:
        """These steps begin now, one after the other."""
        self.begun_ms = now_ms
        self.steps = tuple(steps)
        self.reports += 1

    def halt(self) -> None:
        """No step is under way any more."""
        self.steps = ()
        self.reports += 1

    def done(self, now_ms: int) -> tuple[StepTimes, ...]:
        """The steps that were taken since they began."""
        ends = accumulate((each.duration_ms for each in self.steps), initial=self.begun_ms)
        return self.steps[: sum(1 for end_ms in ends if end_ms <= now_ms) - 1] if self.steps else ()

    def until_ms(self, count: int) -> int:
        """When the first `count` of the steps under way are done."""
        return self.begun_ms + sum(each.duration_ms for each in self.steps[:count])
