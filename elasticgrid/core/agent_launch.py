"""What the log says of the launch that an agent belongs to, and whether the agent is still wanted: pure."""

from __future__ import annotations

import msgspec

from elasticgrid.core import events as ev


class OwnLaunch(msgspec.Struct, frozen=True, kw_only=True):
    """One launch, as far as its agents need to know it.

    Attributes:
        attempt: which.
        requested: its intent is in the log.
        over: why nothing of it is to run any more; empty while it may.
    """

    attempt: str
    requested: bool = False
    over: str = ""

    @property
    def unwanted(self) -> str:
        """Why an agent of it is to end, once all of the log was read; empty when it may go on."""
        return self.over or ("" if self.requested else "the log does not know its launch")


def saw(launch: OwnLaunch, data: ev.EventData) -> OwnLaunch:
    """The launch after one more event; those of others change nothing.

    What ends a launch is final: an attempt is never launched again.
    """
    match data:
        case ev.LaunchRequested(attempt=launch.attempt):
            return msgspec.structs.replace(launch, requested=True)
        case ev.LaunchFailed(attempt=launch.attempt):
            return msgspec.structs.replace(launch, over=launch.over or "its launch failed")
        case ev.LaunchStopRequested(attempt=launch.attempt) | ev.LaunchStopped(attempt=launch.attempt):
            return msgspec.structs.replace(launch, over=launch.over or "its launch was stopped")
        case _:
            return launch
