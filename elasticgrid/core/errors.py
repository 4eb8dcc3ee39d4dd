"""Every error elasticgrid raises on purpose, in one tree.

ElasticGridError
├── InvalidInput            a file, request or argument is wrong; nothing was done
│   ├── InvalidJob
│   └── InvalidGrid
├── CannotPlace             a well-formed job that this grid can never run
├── NotFound                no such job, event, file
├── NotAllowed              the caller may not do this
├── Conflict                somebody else appended first; read again and decide again
│   └── Outdated            what a request was to be done for only unchanged has changed
├── QuotaExceeded           a tenant would go over what it may have or use
├── RateLimited             too many requests in too short a time
├── BusError                the bus did not do what was asked
│   ├── BusUnavailable      not reachable now; a retry may help
│   │   └── CredentialRefused   it is there, but does not let this credential in
│   └── ServerStartFailed   the embedded server did not come up
│       └── FolderInUse     another one runs on its folder
├── EngineError             an engine could not do what was asked; the words are the provider's
│   ├── NodeUnreachable     a node did not answer, so nothing is known of it
│   └── SetupFailed         the job's setup command ended with another code than 0
├── LogError                the event log cannot be trusted or understood
│   ├── LogGap              events are missing between two sequences
│   ├── UndecodableEvent    bytes that are not an event
│   ├── UnknownEventType    an event type this version does not know
│   ├── ArchiveDamaged      an archive is truncated, changed or out of order
│   └── LogDiverged         stream and mirror disagree; nothing may be appended
├── CheckpointDamaged       a checkpoint lacks a file, or one is short or changed
├── IllegalTransition       an event that its job's state does not allow
├── RunFailed               a job that was waited for did not end as it should
│   ├── WorkersFailed       workers failed and no restart was left; which, how and why
│   └── RunInterrupted      a signal ended this node's part before the end
├── RendezvousError         a node and the others of its run did not come together
│   ├── RendezvousClosed        the run is over
│   ├── RendezvousTimedOut      too few nodes joined in time
│   ├── RendezvousConnectionFailed  the bus, or the others, could not be reached
│   ├── RendezvousStateInvalid  the run's log is another's, or damaged
│   ├── RendezvousGracefulExit  the run was completed without this node: nothing is wrong
│   └── RendezvousExhausted     every place in the run is taken
└── ReplayDiverged          re-deciding gave another answer than the log holds
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from elasticgrid.core.run_plan import WorkerFailure


class ElasticGridError(Exception):
    """The root: what happened, where, and what to do about it.

    Args:
        what: what happened, one sentence.
        where: file, field path, subject or sequence it happened at; empty when there is none.
        hint: what the reader can do next; empty when nothing helps.
        story: the lines of the job's history that led here, oldest first.
    """

    code = "error"

    def __init__(self, what: str, *, where: str = "", hint: str = "", story: Sequence[str] = ()) -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.hint = hint
        self.story = tuple(story)

    def __str__(self) -> str:
        text = f"{self.where}: {self.what}" if self.where else self.what
        if self.hint:
            text += f" ({self.hint})"
        for line in self.story:
            text += f"\n    {line}"
        return text


class InvalidInput(ElasticGridError):
    """A file, request or argument is wrong; nothing was done."""

    code = "invalid_input"


class InvalidJob(InvalidInput):
    """A job file or submitted job that is not well-formed."""

    code = "invalid_job"


class InvalidGrid(InvalidInput):
    """A grid file that is not well-formed."""

    code = "invalid_grid"


class CannotPlace(ElasticGridError):
    """A well-formed job that no state of this grid could ever run."""

    code = "cannot_place"


class NotFound(ElasticGridError):
    """No such job, event or file."""

    code = "not_found"


class NotAllowed(ElasticGridError):
    """The caller may not do this."""

    code = "not_allowed"


class Conflict(ElasticGridError):
    """Somebody else appended first: the expected last sequence was not the last one."""

    code = "conflict"


class Outdated(Conflict):
    """A request was to be done only if nothing had changed, and something has.

    Args:
        sequence: what it is at now.
    """

    code = "outdated"

    def __init__(
        self, what: str, *, where: str = "", hint: str = "", story: Sequence[str] = (), sequence: int = 0
    ) -> None:
        super().__init__(what, where=where, hint=hint, story=story)
        self.sequence = sequence


class QuotaExceeded(ElasticGridError):
    """A tenant would go over what it may have or use.

    Args:
        tenant: whose limit it is.
        of: which one: `jobs`, `nodes`, `accelerator_ms` or `microdollars`; the next three are in these.
        limit, used, asked: the numbers.
        frees_ms: when the period ends, Unix milliseconds; None where time alone frees nothing.
        retry_after_s: the same from now on.
    """

    code = "quota_exceeded"

    def __init__(
        self,
        what: str,
        *,
        where: str = "",
        hint: str = "",
        story: Sequence[str] = (),
        tenant: str = "",
        of: str = "",
        limit: int = 0,
        used: int = 0,
        asked: int = 0,
        frees_ms: int | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(what, where=where, hint=hint, story=story)
        self.tenant = tenant
        self.of = of
        self.limit = limit
        self.used = used
        self.asked = asked
        self.frees_ms = frees_ms
        self.retry_after_s = retry_after_s


class RateLimited(ElasticGridError):
    """Too many requests in too short a time.

    Args:
        retry_after_s: when the next one is taken.
    """

    code = "rate_limited"

    def __init__(
        self, what: str, *, where: str = "", hint: str = "", story: Sequence[str] = (), retry_after_s: int = 1
    ) -> None:
        super().__init__(what, where=where, hint=hint, story=story)
        self.retry_after_s = retry_after_s


class BusError(ElasticGridError):
    """The bus did not do what was asked."""

    code = "bus"


class BusUnavailable(BusError):
    """The bus cannot be reached now; trying again may help."""

    code = "bus_unavailable"


class CredentialRefused(BusUnavailable):
    """The bus does not let this credential in: it is wrong, expired or revoked."""

    code = "credential_refused"


class ServerStartFailed(BusError):
    """The embedded nats-server did not come up."""

    code = "server_start_failed"


class FolderInUse(ServerStartFailed):
    """Another server runs on the folder."""

    code = "folder_in_use"


class EngineError(ElasticGridError):
    """An engine could not do what was asked; the words are the provider's own."""

    code = "engine"


class NodeUnreachable(EngineError):
    """A node did not answer: nothing is known of it, and nothing follows from that."""

    code = "node_unreachable"


class SetupFailed(EngineError):
    """The job's setup command ended with another code than 0.

    Args:
        exit_code: what it ended with.
        said: the end of its output.
        where: the host; empty for the launcher's machine.
    """

    code = "setup_failed"

    def __init__(self, exit_code: int, said: str = "", *, where: str = "") -> None:
        super().__init__(f"the setup command ended with {exit_code}: {said}".rstrip(": "), where=where)
        self.exit_code = exit_code


class LogError(ElasticGridError):
    """The event log cannot be trusted or understood."""

    code = "log"


class LogGap(LogError):
    """Events are missing between two sequences."""

    code = "log_gap"


class UndecodableEvent(LogError):
    """Bytes on an event subject that are not an event."""

    code = "undecodable_event"


class UnknownEventType(LogError):
    """An event type that this version does not know; its job cannot be decided on."""

    code = "unknown_event_type"


class ArchiveDamaged(LogError):
    """An archive is truncated, changed, re-ordered or of a foreign format."""

    code = "archive_damaged"


class LogDiverged(LogError):
    """Stream and mirror disagree; nothing may be appended until one is restored."""

    code = "log_diverged"


class CheckpointDamaged(ElasticGridError):
    """A checkpoint lacks a file, or one is short or changed."""

    code = "checkpoint_damaged"


class IllegalTransition(ElasticGridError):
    """An event that the state of its job does not allow."""

    code = "illegal_transition"


class ReplayDiverged(ElasticGridError):
    """Re-deciding from the recorded state gave another answer than the log holds."""

    code = "replay_diverged"


class RunFailed(ElasticGridError):
    """A job that was waited for did not end as it should."""

    code = "run_failed"


class WorkersFailed(RunFailed):
    """Workers failed and no restart was left.

    Args:
        failures: every worker that failed in the last round, root cause first.
    """

    code = "workers_failed"

    def __init__(
        self,
        what: str,
        *,
        where: str = "",
        hint: str = "",
        story: Sequence[str] = (),
        failures: Sequence[WorkerFailure] = (),
    ) -> None:
        super().__init__(what, where=where, hint=hint, story=story)
        self.failures = tuple(failures)


class RunInterrupted(RunFailed):
    """A signal ended this node's part in a run before the run's end; its workers are gone.

    Args:
        exit_code: 128 and the signal's number, as a shell has it.
    """

    code = "run_interrupted"

    def __init__(self, what: str, *, where: str = "", exit_code: int = 1) -> None:
        super().__init__(what, where=where)
        self.exit_code = exit_code


class RendezvousError(ElasticGridError):
    """A node and the others of its run did not come together."""

    code = "rendezvous"


class RendezvousClosed(RendezvousError):
    """The run is over, so nobody can join it any more."""

    code = "rendezvous_closed"


class RendezvousTimedOut(RendezvousError):
    """Fewer nodes than the run needs joined in the time that this one waits."""

    code = "rendezvous_timed_out"


class RendezvousConnectionFailed(RendezvousError):
    """The bus that the nodes meet at could not be reached, or this node was not heard of for too long."""

    code = "rendezvous_connection"


class RendezvousStateInvalid(RendezvousError):
    """What is in the log under the run's name is not a run of these settings, or cannot be understood."""

    code = "rendezvous_state"


class RendezvousGracefulExit(RendezvousError):
    """The run was completed while this node waited for a place in it: nothing is wrong and nothing is left to do."""

    code = "rendezvous_graceful_exit"


class RendezvousExhausted(RendezvousError):
    """Every place in the run is taken, and none became free in the time that this node waits."""

    code = "rendezvous_exhausted"
