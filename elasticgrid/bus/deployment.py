"""What a bus of its own and the services around it are configured with, made from one secret."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from elasticgrid.bus.accounts import ROLES, Role
from elasticgrid.bus.authority import AUTHORITY_FILE, Authority, keep_authority
from elasticgrid.bus.credentials import write_credentials, write_private
from elasticgrid.bus.server_config import trust

TRUST_FILE: Final = "trust.conf"
#: The services that run as processes of their own.
SERVED: Final[tuple[Role, ...]] = ("decider", "launcher", "gateway")
SECRET_VARIABLE: Final = "ELASTICGRID_BUS_SECRET"  # noqa: S105 - the variable's name


def deployment_variables(authority: Authority, secret: str, now_s: int) -> dict[str, str]:
    """Everything that compose.yaml puts into files, as variables.

    Args:
        authority: made from the secret.
        secret: as it stands in its file.
        now_s: Unix seconds.
    """
    services = {
        f"ELASTICGRID_{role.upper()}_TOKEN": authority.service(role, now_s).token for role in ("service", *SERVED)
    }
    return {
        SECRET_VARIABLE: secret,
        "ELASTICGRID_NATS_OPERATOR": authority.operator_token(now_s),
        "ELASTICGRID_NATS_SYSTEM_ACCOUNT": authority.system_account,
        "ELASTICGRID_NATS_SYSTEM_TOKEN": authority.system_account_token(now_s),
        "ELASTICGRID_NATS_GRID_ACCOUNT": authority.grid_account,
        "ELASTICGRID_NATS_GRID_TOKEN": authority.grid_account_token(now_s),
        **services,
    }


def write_deployment(folder: Path, accounts_dir: str, now_s: int, *, ca: str = "") -> tuple[Path, ...]:
    """Write the secret, what a server includes to trust it, and a credential for each role; returns the files.

    A secret that is there already is kept, so that what was made from it stays good.

    Args:
        folder: where to.
        accounts_dir: where the server keeps tenants' accounts, on its own machine.
        now_s: Unix seconds.
        ca: the certificates, as PEM, that the server's is checked with.

    Raises:
        InvalidInput: the secret that is there cannot be used.
        OSError: the folder cannot be written.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)
    secret = folder / AUTHORITY_FILE
    authority = keep_authority(secret)
    server = folder / TRUST_FILE
    write_private(server, trust(authority, now_s, accounts_dir=accounts_dir).encode())
    written = [secret, server]
    for role in ROLES:
        path = folder / f"{role}.json"
        write_credentials(path, msgspec.structs.replace(authority.service(role, now_s), ca=ca))
        written.append(path)
    return tuple(written)
