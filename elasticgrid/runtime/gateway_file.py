"""Where a running control plane tells commands of the same folder how to reach it."""

from __future__ import annotations

from pathlib import Path

import msgspec

GATEWAY_FILE = "gateway.json"


class GatewayFile(msgspec.Struct, frozen=True, kw_only=True):
    """Tells commands started in the same folder where the gateway is: `<data_dir>/gateway.json`.

    Attributes:
        ca: path of the certificates that the gateway's is checked with; empty for those that the machine trusts.
    """

    url: str
    key_file: str
    ca: str = ""


def read_gateway_file(data_dir: Path) -> GatewayFile | None:
    """What a control plane that runs on this data folder tells; None where none does."""
    try:
        return msgspec.json.decode((data_dir / GATEWAY_FILE).read_bytes(), type=GatewayFile)
    except (OSError, msgspec.MsgspecError):
        return None
