"""Nodes of a run in the test's own folder."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from run_nodes import Nodes, nodes_in

from elasticgrid.bus.embedded import EmbeddedServer


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncGenerator[Nodes]:
    """No node yet; those that a test starts are ended with it."""
    folder = tmp_path / "run"
    folder.mkdir()
    async with nodes_in(folder) as started:
        yield started


@pytest.fixture
def meet(embedded_server: EmbeddedServer) -> list[str]:
    """The flags that make nodes meet on a bus that is there."""
    address = embedded_server.address
    return ["--bus", address.url, "--credentials", address.credentials, "--run-id", "trial"]
