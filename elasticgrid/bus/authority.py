"""Who lets in: one secret, from which every account, every credential and every tenant's secret is made.

Nothing else is kept. Whoever holds the secret can make the same keys again, so a launcher that starts anew goes on
where the one before it ended, and a new secret makes everything that was made from the old one worthless.
"""

from __future__ import annotations

import os
import re
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from elasticgrid.bus import accounts
from elasticgrid.bus.accounts import Role
from elasticgrid.bus.credentials import Credentials, write_private
from elasticgrid.bus.nkey_tokens import KeyPair, derived, signed_token
from elasticgrid.bus.subjects import renewal_subject
from elasticgrid.core.errors import InvalidInput

AUTHORITY_FILE: Final = "authority.key"
_SECRET: Final = re.compile(r"[0-9a-f]{64}")


class LaunchKey(msgspec.Struct, frozen=True):
    """Which launch a credential is for; `launch` is its name, which no two launches share."""

    tenant: str
    job: str
    launch: str


class Authority:
    """Makes accounts, credentials and tenants' secrets.

    Attributes:
        system_account, grid_account: their public keys.
    """

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._operator = KeyPair(secret, "operator", "operator")
        self._system = KeyPair(secret, "system", "account")
        self._grid = KeyPair(secret, "grid", "account")
        self.system_account: Final = self._system.public
        self.grid_account: Final = self._grid.public

    def __repr__(self) -> str:
        return f"Authority({self._operator.public})"

    # ----------------------------------------------------------------------------------------------------------------
    # What the server is told
    # ----------------------------------------------------------------------------------------------------------------

    def operator_token(self, now_s: int) -> str:
        """The operator: the server trusts what it signed."""
        claims = accounts.operator_claims(self.system_account)
        public = self._operator.public
        return signed_token(self._operator, public, "elasticgrid", "operator", claims, issued_s=now_s)

    def system_account_token(self, now_s: int) -> str:
        """The server's own account."""
        return self._account(self._system.public, "system", accounts.system_account_claims(), now_s)

    def grid_account_token(self, now_s: int, revoked: Mapping[str, int] = {}) -> str:
        """The account with the streams; `revoked` as for a tenant's."""
        return self._account(self._grid.public, "grid", accounts.grid_account_claims(revoked), now_s)

    def tenant_account_token(self, tenant: str, now_s: int, revoked: Mapping[str, int] = {}) -> str:
        """A tenant's account.

        Args:
            tenant: its name.
            now_s: Unix seconds.
            revoked: its users' public keys (`launch_user`), and until when what was issued to them is refused.
        """
        claims = accounts.tenant_account_claims(tenant, self.grid_account, revoked)
        return self._account(self._tenant(tenant).public, f"tenant {tenant}", claims, now_s)

    # ----------------------------------------------------------------------------------------------------------------
    # Credentials
    # ----------------------------------------------------------------------------------------------------------------

    def service(self, role: Role, now_s: int, *, expires_s: int = 0) -> Credentials:
        """For a service or an operator."""
        inbox = f"_INBOX_{role}"
        return self._user(self._grid, f"role {role}", accounts.role_claims(role, inbox), inbox, now_s, expires_s)

    def launch(self, key: LaunchKey, now_s: int, *, expires_s: int) -> Credentials:
        """For the agents and workers of one launch."""
        label = _launch_label(key)
        inbox = self._inbox(label)
        claims = accounts.launch_claims(key.tenant, key.job, key.launch, inbox)
        made = self._user(self._tenant(key.tenant), label, claims, inbox, now_s, expires_s)
        return msgspec.structs.replace(
            made,
            asks=True,
            renewal=renewal_subject(key.tenant, key.job, key.launch),
            rendezvous_secret=self.rendezvous_secret(key.tenant),
        )

    def launch_user(self, key: LaunchKey) -> str:
        """The public key by which a launch's credentials are revoked."""
        return KeyPair(self._secret, _launch_label(key), "user").public

    def watcher(self, tenant: str, name: str, now_s: int, *, expires_s: int, websocket: bool = False) -> Credentials:
        """For a dashboard of a tenant: it reads events and writes nothing.

        Args:
            tenant: whose events.
            name: of the dashboard.
            now_s: Unix seconds.
            expires_s: Unix seconds.
            websocket: it may enter by the WebSocket listener alone.
        """
        label = f"watcher {tenant}/{name}"
        inbox = self._inbox(label)
        claims = accounts.watcher_claims(tenant, inbox, websocket=websocket)
        made = self._user(self._tenant(tenant), label, claims, inbox, now_s, expires_s)
        return msgspec.structs.replace(made, asks=True)

    def system(self, now_s: int) -> Credentials:
        """For who brings accounts to the server."""
        inbox = self._inbox("system")
        return self._user(self._system, "system", accounts.system_claims(inbox), inbox, now_s, 0)

    def rendezvous_secret(self, tenant: str) -> str:
        """What the workers of a tenant sign their rendezvous tickets with."""
        return derived(self._secret, f"rendezvous:{tenant}").hex()

    # ----------------------------------------------------------------------------------------------------------------

    def _tenant(self, tenant: str) -> KeyPair:
        return KeyPair(self._secret, f"tenant {tenant}", "account")

    def _account(self, public: str, name: str, claims: Mapping[str, object], now_s: int) -> str:
        return signed_token(self._operator, public, name, "account", claims, issued_s=now_s)

    def _user(
        self, account: KeyPair, label: str, claims: Mapping[str, object], inbox: str, now_s: int, expires_s: int
    ) -> Credentials:
        public = KeyPair(self._secret, label, "user").public
        token = signed_token(account, public, label, "user", claims, issued_s=now_s, expires_s=expires_s)
        return Credentials(inbox_prefix=inbox, token=token)

    def _inbox(self, label: str) -> str:
        """Where a user receives answers; others of its account cannot know it."""
        return f"_INBOX_{derived(self._secret, f'inbox:{label}').hex()[:24]}"


def _launch_label(key: LaunchKey) -> str:
    return f"launch {key.tenant}/{key.job}/{key.launch}"


def keep_authority(path: Path) -> Authority:
    """The authority whose secret is in this file; a new one is made where there is no file.

    Raises:
        InvalidInput: the file holds no such secret, or others can read it.
    """
    if not os.path.lexists(path):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_private(path, f"{secrets.token_hex(32)}\n".encode())
    return read_authority(path)


def read_authority(path: Path) -> Authority:
    """The authority whose secret is in this file.

    Raises:
        InvalidInput: there is no such file, it holds no secret, or others can read it.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise InvalidInput(
            f"the bus's secret cannot be read: {error.strerror}",
            where=str(path),
            hint="elasticgrid bus init makes one; with the embedded server it is in the data folder",
        ) from error
    with os.fdopen(descriptor, encoding="ascii", errors="replace") as file:
        if os.fstat(descriptor).st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise InvalidInput("other users can read the bus's secret", where=str(path), hint=f"chmod 600 {path}")
        text = file.read(200).strip()
    if not _SECRET.fullmatch(text):
        raise InvalidInput(
            "this file does not hold the bus's secret",
            where=str(path),
            hint="delete it; the next start makes a new one, and every credential anew",
        )
    return Authority(bytes.fromhex(text))
