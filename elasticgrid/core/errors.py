"""Every error elasticgrid raises on purpose, in one tree.

ElasticGridError
├── InvalidInput            a file, request or argument is wrong; nothing was done
│   ├── InvalidJob
│   └── InvalidGrid
├── CannotPlace             a well-formed job that this grid can never run
├── NotFound                no such job, event, file
├── NotAllowed              the caller may not do this
├── Conflict                somebody else appended first; read again and decide again
├── BusError                the bus did not do what was asked
│   ├── BusUnavailable      not reachable now; a retry may help
│   └── ServerStartFailed   the embedded server did not come up
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
└── ReplayDiverged          re-deciding gave another answer than the log holds
"""

from __future__ import annotations

from collections.abc import Sequence


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


class BusError(ElasticGridError):
    """The bus did not do what was asked."""

    code = "bus"


class BusUnavailable(BusError):
    """The bus cannot be reached now; trying again may help."""

    code = "bus_unavailable"


class ServerStartFailed(BusError):
    """The embedded nats-server did not come up."""

    code = "server_start_failed"


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
