"""Keys: how they are made and kept, and who it is that sends one.

A key is `eg_<prefix>_<secret>`. The log keeps its prefix and a digest under a secret of this gateway, so that neither a
log nor an archive opens anything; the key itself is shown once, to whoever made it.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import re
import secrets
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from elasticgrid.clock import Clock
from elasticgrid.core.errors import RateLimited
from elasticgrid.core.rate import Bucket, RateLimit, full, take
from elasticgrid.core.tenancy import AccessState, KeyState, is_open
from elasticgrid.gateway.access import Access
from elasticgrid.gateway.auth import ADMIN_KEY_FILE, KEY_HEADER, AdminKey
from elasticgrid.gateway.ended_sessions import EndedSessions
from elasticgrid.gateway.problems import NotAuthenticated
from elasticgrid.gateway.sessions import Session, read_session, signed_session

#: Requests of a key that has no limit of its own.
DEFAULT_LIMIT: Final = RateLimit(per_s=200, burst=1_000)

_PREFIX_BYTES: Final = 4
_SECRET_BYTES: Final = 32
_SESSION_BYTES: Final = 12
_FORM: Final = re.compile(r"eg_([0-9a-f]{8})_([A-Za-z0-9_-]{43})")
_NOBODY: Final = "0" * 64


class NewKey(msgspec.Struct, frozen=True):
    """A key as it is shown once, and what is kept of it."""

    text: str
    prefix: str
    digest: str


class Keyring:
    """Tells who sends a key, or is logged in with one.

    Args:
        admin: the key in the gateway's folder, for everything.
        secret: what digests and sessions are made under.
        state: all other keys, as the log tells them now.
        clock: for what expires.
        limit: how often a key without a limit of its own may ask.
        ended: logins that were ended; None keeps them in memory alone.
    """

    def __init__(
        self,
        admin: AdminKey,
        secret: bytes,
        state: Callable[[], AccessState],
        clock: Clock,
        *,
        limit: RateLimit = DEFAULT_LIMIT,
        ended: EndedSessions | None = None,
    ) -> None:
        self._admin = admin
        self._digest_secret = _derived(secret, "digests of keys")
        self._session_secret = _derived(secret, "sessions")
        self._state = state
        self._clock = clock
        self._limit = limit
        self._buckets: dict[str, Bucket] = {}
        self._ended = ended if ended is not None else EndedSessions()

    @property
    def admin(self) -> AdminKey:
        """The key for everything."""
        return self._admin

    def new_key(self) -> NewKey:
        """A key that nobody has yet."""
        while True:
            prefix = secrets.token_hex(_PREFIX_BYTES)
            if prefix != self._admin.prefix and prefix not in self._state().keys:
                text = f"eg_{prefix}_{secrets.token_urlsafe(_SECRET_BYTES)}"
                return NewKey(text, prefix, self._digest(text))

    def who_sends(self, headers: Mapping[str, str]) -> Access | None:
        """Who sends the key in these headers; None when there is none.

        Raises:
            NotAuthenticated: it is none of this grid, or not any more.
        """
        given = headers.get(KEY_HEADER.lower(), "")
        if not given:
            scheme, _, token = headers.get("authorization", "").partition(" ")
            given = token.strip() if scheme.lower() == "bearer" else ""
        return self.who_has(given) if given else None

    def who_has(self, key: str) -> Access:
        """Who has this key. Raises as `who_sends`."""
        if self._admin.matches(key):
            return self._of_admin()
        match = _FORM.fullmatch(key)
        known = self._state().keys.get(match[1]) if match is not None else None
        # As much work for a prefix that there is as for one that there is not.
        same = hmac.compare_digest(self._digest(key), known.digest if known is not None else _NOBODY)
        if known is None or not same:
            raise _refused("this is not a key of this gateway")
        return self._of_key(known)

    def begin_session(self, access: Access, *, lifetime_ms: int) -> tuple[str, int]:
        """What a browser keeps instead of the key, and until when it is good, Unix milliseconds."""
        now_ms = self._clock.now_ms()
        until_ms = now_ms + lifetime_ms
        if access.expires_ms is not None:
            until_ms = min(until_ms, access.expires_ms)
        session = Session(secrets.token_urlsafe(_SESSION_BYTES), access.prefix, self._mark(access.prefix), until_ms)
        return signed_session(self._session_secret, session), until_ms

    def end_session(self, session: str) -> bool:
        """Let a login open nothing from now on; whether it did until now."""
        found = read_session(self._session_secret, session)
        now_ms = self._clock.now_ms()
        if found is None or found.until_ms <= now_ms or found.id in self._ended:
            return False
        self._ended.add(found.id, found.until_ms, now_ms)
        return True

    def who_is_logged_in(self, session: str) -> Access:
        """Whose session it is: its key must be good still. Raises as `who_sends`."""
        found = read_session(self._session_secret, session)
        over = found is None or found.id in self._ended or self._clock.now_ms() >= found.until_ms
        if found is None or over or found.mark != self._mark(found.prefix):
            raise _refused("the session is over", hint="log in again")
        if found.prefix == self._admin.prefix:
            access = self._of_admin()
        else:
            access = self._of_key(self._state().keys[found.prefix])
        return msgspec.structs.replace(access, session_id=found.id, expires_ms=found.until_ms)

    def left_s(self, access: Access) -> float:
        """For how long somebody who was let in may go on, in seconds: 0 once their key or login is over.

        Asked again by whoever answers for long, since a key can be revoked meanwhile.
        """
        now_ms = self._clock.now_ms()
        if access.prefix != self._admin.prefix:
            key = self._state().keys.get(access.prefix)
            if key is None or not is_open(key, now_ms):
                return 0.0
        if access.session_id in self._ended:
            return 0.0
        return max(access.expires_ms - now_ms, 0) / 1_000 if access.expires_ms is not None else math.inf

    def count_request(self, access: Access) -> None:
        """One more request.

        Raises:
            RateLimited: that is one too many for now.
        """
        now_ms = self._clock.now_ms()
        bucket = self._buckets.get(access.prefix) or full(access.limit, now_ms)
        self._buckets[access.prefix], wait_ms = take(bucket, access.limit, now_ms)
        if wait_ms:
            raise RateLimited(
                f"this key may make {access.limit.per_s} requests a second, {access.limit.burst} at once",
                hint=f"wait {wait_ms} ms",
                retry_after_s=-(-wait_ms // 1_000),
            )

    def _of_admin(self) -> Access:
        return Access(prefix=self._admin.prefix, tenant="", scope="admin", limit=self._limit)

    def _of_key(self, key: KeyState) -> Access:
        if not is_open(key, self._clock.now_ms()):
            raise _refused("this key was revoked" if key.revoked_ms else "this key has expired")
        own = RateLimit(key.rate_per_s or self._limit.per_s, key.burst or self._limit.burst)
        return Access(prefix=key.prefix, tenant=key.tenant, scope=key.scope, expires_ms=key.expires_ms, limit=own)

    def _digest(self, key: str) -> str:
        return hmac.new(self._digest_secret, key.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()

    def _mark(self, prefix: str) -> str:
        """Ties a session to the very key it was begun with: another one of the same prefix does not go on with it."""
        if prefix == self._admin.prefix:
            return self._digest(f"admin {self._admin.digest.hex()}")[:16]
        known = self._state().keys.get(prefix)
        return known.digest[:16] if known is not None else ""


def _derived(secret: bytes, use: str) -> bytes:
    return hmac.new(secret, use.encode(), hashlib.sha256).digest()


def _refused(what: str, *, hint: str = f"the admin key is in the gateway's {ADMIN_KEY_FILE}") -> NotAuthenticated:
    return NotAuthenticated(what, hint=hint)
