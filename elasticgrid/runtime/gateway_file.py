"""Where a running control plane tells commands of the same folder how to reach it."""

from __future__ import annotations

import msgspec

GATEWAY_FILE = "gateway.json"


class GatewayFile(msgspec.Struct, frozen=True, kw_only=True):
    """Tells commands started in the same folder where the gateway is: `<data_dir>/gateway.json`."""

    url: str
    key_file: str
