"""What the training thread and the sending thread know of each other: plain attributes, each written by one of them."""

from __future__ import annotations


class TrainerState:
    """One attribute is one assignment, so neither thread ever waits for the other.

    Attributes:
        steps_completed: written by the training thread.
        checkpointed: (step, uri) of the last checkpoint told; written by the training thread.
        stopped_at: the step at which `should_stop` was first true; written by the training thread.
        expiring: by number, what was said to end in time and has not: when by `time.monotonic`, how long it was given,
            and its name; a new dictionary with every change, written by the training thread.
        stop_at: the step the agents agreed on; written by the sending thread.
        published: samples the bus has acknowledged; written by the sending thread.
        spooled: samples in this hook's spool file; written by the sending thread.
        reconnects: connections to bus or agent beyond the first ones; written by the sending thread.
        problem: the last thing that went wrong, for people; written by either.
    """

    def __init__(self, *, resume_step: int) -> None:
        self.steps_completed = resume_step
        self.checkpointed: tuple[int, str] | None = None
        self.stopped_at: int | None = None
        self.expiring: dict[int, tuple[float, float, str]] = {}
        self.stop_at: int | None = None
        self.published = 0
        self.spooled = 0
        self.reconnects = 0
        self.problem = ""
