"""A route that asks whether the log can be trusted: every event of the stream is compared with the mirror's."""

from __future__ import annotations

from typing import Final

from litestar import post
from litestar.types import ControllerRouterHandler

from elasticgrid.core.errors import NotFound
from elasticgrid.gateway.parameters import Gateway
from elasticgrid.log.mirror_record import Verified
from elasticgrid.log.mirrored import MirroredLog


@post("/events/verify", status_code=200, summary="Compare the log with its mirror")
async def verify_log(gateway: Gateway) -> Verified:
    """All of it, byte by byte. Where they differ the answer is 503, with the first difference and what to do."""
    if not isinstance(gateway.event_log, MirroredLog):
        raise NotFound("this gateway keeps no mirror of the log", hint="one that `elasticgrid up` started does")
    return await gateway.event_log.verify(full=True)


TRUST_ROUTES: Final[tuple[ControllerRouterHandler, ...]] = (verify_log,)
