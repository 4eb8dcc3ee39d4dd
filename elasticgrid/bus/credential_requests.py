"""What is asked for, and answered, on the subjects where credentials are given out."""

from __future__ import annotations

from typing import Final

import msgspec

from elasticgrid.bus.credentials import Credentials

#: The longest that a dashboard's credential lasts.
MAX_WATCHER_S: Final = 86_400


class WatcherWish(msgspec.Struct, frozen=True, kw_only=True):
    """A credential for a dashboard of a tenant.

    Attributes:
        name: of the dashboard.
        lasts_s: how long it is valid, in seconds; a day at most.
        websocket: it enters by the WebSocket listener alone.
    """

    name: str = "dashboard"
    lasts_s: int = 3_600
    websocket: bool = False


class Issued(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An answer: a credential, or why there is none."""

    credentials: Credentials | None = None
    problem: str = ""
