"""How many requests somebody may make: a bucket of tokens that fills with time. Pure: the time is an argument."""

from __future__ import annotations

from typing import Final

import msgspec

#: A token is counted in thousandths, so that a bucket fills by whole numbers.
_TOKEN: Final = 1_000


class RateLimit(msgspec.Struct, frozen=True):
    """So many requests a second in the long run, and so many at once."""

    per_s: int
    burst: int


class Bucket(msgspec.Struct, frozen=True):
    """What is left of a limit as of a time; thousandths of a request."""

    left: int
    as_of_ms: int


def full(limit: RateLimit, now_ms: int) -> Bucket:
    """The bucket of somebody who has not asked yet."""
    return Bucket(limit.burst * _TOKEN, now_ms)


def take(bucket: Bucket, limit: RateLimit, now_ms: int) -> tuple[Bucket, int]:
    """The bucket after one more request at `now_ms`, and 0; or the bucket as it is, and how long to wait, milliseconds.

    A clock that goes back fills nothing and takes nothing away.
    """
    since_ms = max(now_ms - bucket.as_of_ms, 0)
    left = min(bucket.left + since_ms * limit.per_s, limit.burst * _TOKEN)
    now = max(now_ms, bucket.as_of_ms)
    if left >= _TOKEN:
        return Bucket(left - _TOKEN, now), 0
    return Bucket(left, now), -(-(_TOKEN - left) // limit.per_s)
