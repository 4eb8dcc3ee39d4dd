"""Amazon EC2: the spot instance action and the rebalance recommendation, by the instance metadata service, version 2.

A session token is asked for first and sent with every question; it is renewed before it ends and when it is refused.
Both documents answer 404 while there is nothing to say.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from time import monotonic
from typing import Final

import msgspec

from elasticgrid.agent.notices.http import Answer, request
from elasticgrid.agent.notices.notice import TEXT_LENGTH, Notice, SourceTrouble

BASE_URL: Final = "http://169.254.169.254"
TOKEN_PATH: Final = "/latest/api/token"  # noqa: S105 - a path, not a secret
ACTION_PATH: Final = "/latest/meta-data/spot/instance-action"
REBALANCE_PATH: Final = "/latest/meta-data/events/recommendations/rebalance"
TOKEN_LIFE_S: Final = 21_600
TIMEOUT_S: Final = 2.0


class _Action(msgspec.Struct, frozen=True):
    """`{"action": "terminate", "time": "2025-10-09T08:55:48Z"}`."""

    action: str
    time: datetime


class AwsSource:
    """Asks the metadata service at `base_url`.

    Args:
        pause_s: between two questions; the documentation says five seconds.
        clock: seconds that only grow.
    """

    def __init__(
        self, base_url: str = BASE_URL, *, pause_s: float = 5.0, clock: Callable[[], float] = monotonic
    ) -> None:
        self.pause_s = pause_s
        self._base_url = base_url.rstrip("/")
        self._clock = clock
        self._token = ""
        self._token_until_s = 0.0

    async def look(self) -> Notice | None:
        """The spot action, which has a time, or else the recommendation, which has none."""
        said = await self._get(ACTION_PATH)
        if said is not None:
            try:
                action = msgspec.json.decode(said.body, type=_Action)
            except (msgspec.MsgspecError, ValueError, RecursionError) as error:
                raise SourceTrouble(f"{ACTION_PATH} is not what is documented: {error}") from error
            at = action.time if action.time.tzinfo is not None else action.time.replace(tzinfo=UTC)
            return Notice(source="aws", deadline_ms=round(at.timestamp() * 1000), text=said.text[:TEXT_LENGTH])
        said = await self._get(REBALANCE_PATH)
        if said is not None:
            return Notice(source="aws", deadline_ms=0, text=f"rebalance recommendation {said.text}"[:TEXT_LENGTH])
        return None

    async def node_left(self) -> None:
        """Nothing: the instance is taken at its time whatever is said."""

    async def _get(self, path: str) -> Answer | None:
        for _ in range(2):
            if not self._token or self._clock() >= self._token_until_s:
                await self._renew()
            answer = await request(
                "GET",
                f"{self._base_url}{path}",
                headers={"X-aws-ec2-metadata-token": self._token},
                timeout_s=TIMEOUT_S,
            )
            if answer.status == 404:
                return None
            if answer.status == 200:
                return answer
            if answer.status != 401:
                raise SourceTrouble(f"{path} answered {answer.status}")
            self._token = ""
        raise SourceTrouble(f"{path} does not take the token it gave")

    async def _renew(self) -> None:
        answer = await request(
            "PUT",
            f"{self._base_url}{TOKEN_PATH}",
            headers={"X-aws-ec2-metadata-token-ttl-seconds": str(TOKEN_LIFE_S)},
            timeout_s=TIMEOUT_S,
        )
        if answer.status != 200 or not answer.text.isascii() or not answer.text.isprintable():
            raise SourceTrouble(f"{TOKEN_PATH} answered {answer.status}")
        self._token = answer.text
        self._token_until_s = self._clock() + TOKEN_LIFE_S / 2
