"""How the nodes that a launcher starts get to the bus."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from elasticgrid import environment
from elasticgrid.bus.connect import BusAddress
from elasticgrid.core.errors import InvalidInput
from elasticgrid.launcher.config import CREDENTIAL_LIFE_S

SHORTEST_LIFE_S = 10
LONGEST_LIFE_S = 30 * 86_400


class NodeBus(msgspec.Struct, frozen=True, kw_only=True):
    """Where nodes find the bus, and what they enter it with.

    Attributes:
        url: where they reach it.
        ca: path of the certificates that its own is checked with; empty for those that machines trust.
        authority: path of the bus's secret, with which each launch gets a credential of its own; empty for none.
        credentials: without it, path of the credential that all nodes share; empty when the bus asks for none.
        credential_life_s: how long the credential of a launch is valid.
    """

    url: str
    ca: str = ""
    authority: str = ""
    credentials: str = ""
    credential_life_s: int = CREDENTIAL_LIFE_S

    @staticmethod
    def from_environment(environ: Mapping[str, str], own: BusAddress) -> NodeBus:
        """What the variables of a launcher say, which itself reaches the bus at `own`.

        Raises:
            InvalidInput: the time that credentials are valid for is no usable number.
        """

        def text(name: str) -> str:
            return environ.get(name, "").strip()

        authority = text(environment.BUS_AUTHORITY)
        return NodeBus(
            url=text(environment.NODE_NATS_URL) or own.url,
            ca=own.ca,
            authority=authority,
            credentials=text(environment.NODE_CREDENTIALS) or ("" if authority else own.credentials),
            credential_life_s=_life_s(text(environment.CREDENTIAL_LIFE_S)),
        )


def _life_s(text: str) -> int:
    if not text:
        return CREDENTIAL_LIFE_S
    if not (text.isascii() and text.isdigit() and SHORTEST_LIFE_S <= int(text) <= LONGEST_LIFE_S):
        raise InvalidInput(
            f"{text!r} is not usable",
            where=environment.CREDENTIAL_LIFE_S,
            hint=f"whole seconds from {SHORTEST_LIFE_S} to {LONGEST_LIFE_S}",
        )
    return int(text)
