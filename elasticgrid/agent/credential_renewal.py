"""Keeps the node's credential valid: the next one is asked for over the bus when half of its time is over."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec
import structlog

from elasticgrid.agent.bus_link import BusLink
from elasticgrid.bus.credential_requests import Issued
from elasticgrid.bus.credentials import Credentials, read_credentials, write_credentials
from elasticgrid.clock import Clock
from elasticgrid.core.errors import BusError, InvalidInput

_log = structlog.get_logger("elasticgrid.agent")

ANSWER_TIMEOUT_S: Final = 5.0
#: Between two tries, and the longest time until the file is looked at again: somebody else may have renewed it.
RETRY_S: Final = 30.0
LOOK_EVERY_S: Final = 600.0


def renew_in_s(credentials: Credentials, now_s: float) -> float | None:
    """How long from now until the next credential is asked for; None when it is never renewed."""
    if not credentials.renewal or not credentials.expires_s:
        return None
    return max(0.0, (credentials.issued_s + credentials.expires_s) / 2 - now_s)


async def keep_renewed(path: str, link: BusLink, clock: Clock) -> None:
    """Renew the credential in this file again and again; returns when it is one that is not renewed.

    A node whose launch is over is refused; the file then stays as it is.
    """
    while path:
        try:
            credentials = read_credentials(path)
        except InvalidInput as error:
            _log.warning("the credential cannot be renewed", error=str(error))
            return
        wait_s = renew_in_s(credentials, clock.now_ms() / 1000)
        if wait_s is None:
            return
        if wait_s > 0:
            await clock.sleep(min(wait_s, LOOK_EVERY_S))
            continue
        if not await _renew(Path(path), credentials, link):
            left_s = credentials.expires_s - clock.now_ms() / 1000
            await clock.sleep(max(0.5, min(RETRY_S, left_s / 4)))


async def _renew(path: Path, credentials: Credentials, link: BusLink) -> bool:
    try:
        data = await link.request(credentials.renewal, b"", ANSWER_TIMEOUT_S)
        issued = msgspec.json.decode(data, type=Issued) if data is not None else Issued(problem="no answer")
    except (BusError, msgspec.MsgspecError) as error:
        issued = Issued(problem=str(error))
    if issued.credentials is None:
        _log.warning("the credential was not renewed", problem=issued.problem)
        return False
    write_credentials(path, issued.credentials)
    return True
