"""Where a running control plane tells commands of the same folder how to reach it."""

from __future__ import annotations

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
