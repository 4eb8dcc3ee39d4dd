"""The bus by TLS: who does not know its CA does not trust it, and nobody talks to it in the clear."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import msgspec
import pytest
import trustme
from bus_users import JOB

from elasticgrid.bus.connect import BusAddress, connect
from elasticgrid.bus.credentials import Credentials, read_credentials, write_credentials
from elasticgrid.bus.embedded import EmbeddedServer
from elasticgrid.bus.server_config import Listening, ServerTls
from elasticgrid.core.errors import BusUnavailable, InvalidInput, ServerStartFailed
from elasticgrid.testing.bus import bus_client, connection, launch_address

pytestmark = [pytest.mark.server, pytest.mark.security]


def certificates(folder: Path, *hosts: str) -> ServerTls:
    """A CA of its own, and a certificate that it signed."""
    folder.mkdir()
    ca = trustme.CA()
    issued = ca.issue_cert(*hosts)
    ca.cert_pem.write_to_path(str(folder / "ca.pem"))
    issued.private_key_and_cert_chain_pem.write_to_path(str(folder / "server.pem"))
    return ServerTls(cert=str(folder / "server.pem"), key=str(folder / "server.pem"), ca=str(folder / "ca.pem"))


@pytest.fixture
async def secured(tmp_path: Path) -> AsyncGenerator[EmbeddedServer]:
    tls = certificates(tmp_path / "tls", "127.0.0.1")
    async with EmbeddedServer(tmp_path / "data", listening=Listening(tls=tls)) as server:
        yield server


def with_ca(address: BusAddress, ca: str) -> Credentials:
    return msgspec.structs.replace(read_credentials(address.credentials), ca=Path(ca).read_text())


async def test_services_and_launches_come_in_by_tls(secured: EmbeddedServer, tmp_path: Path) -> None:
    assert secured.url.startswith("tls://127.0.0.1:")
    async with bus_client(secured), connection(await launch_address(secured, "acme", JOB)) as launch:
        assert (await launch.request(f"grid.samples.acme.{JOB}.0", b"x", timeout=5)).data


async def test_the_ca_in_a_credential_file_is_enough(secured: EmbeddedServer, tmp_path: Path) -> None:
    address = secured.address
    write_credentials(tmp_path / "whole.json", with_ca(address, secured.ca))
    async with connection(BusAddress(secured.url, str(tmp_path / "whole.json"))) as client:
        assert client.is_connected


async def test_a_server_that_another_ca_vouches_for_is_refused_and_the_hint_says_what_to_name(
    secured: EmbeddedServer, tmp_path: Path
) -> None:
    other = certificates(tmp_path / "other", "127.0.0.1").ca
    for ca in (other, ""):
        with pytest.raises(BusUnavailable, match=r"certificate is not trusted.*ELASTICGRID_NATS_CA"):
            await connect(BusAddress(secured.url, secured.address.credentials, ca), name="wary", connect_timeout_s=1.0)
    with pytest.raises(InvalidInput, match="ELASTICGRID_NATS_CA"):
        await connect(BusAddress(secured.url, secured.address.credentials, str(tmp_path / "none.pem")), name="wary")


async def test_a_certificate_of_another_host_is_refused(tmp_path: Path) -> None:
    tls = certificates(tmp_path / "tls", "elsewhere.example")
    async with EmbeddedServer(tmp_path / "data", listening=Listening(tls=tls)) as server:
        with pytest.raises(BusUnavailable, match="certificate is not trusted"):
            await connect(server.address, name="wary", connect_timeout_s=1.0)


async def test_nobody_talks_to_it_in_the_clear(secured: EmbeddedServer) -> None:
    clear = BusAddress(secured.url.replace("tls://", "nats://"), secured.address.credentials)
    with pytest.raises(BusUnavailable):
        await connect(clear, name="clear", connect_timeout_s=1.0)


async def test_a_bus_in_the_clear_is_not_taken_for_a_secured_one(embedded_server: EmbeddedServer) -> None:
    pretended = BusAddress(embedded_server.url.replace("nats://", "tls://"), embedded_server.address.credentials)
    with pytest.raises((BusUnavailable, InvalidInput)):
        await connect(pretended, name="wary", connect_timeout_s=1.0)


async def test_a_certificate_that_is_none_keeps_the_server_from_starting_and_is_named(tmp_path: Path) -> None:
    broken = tmp_path / "broken.pem"
    broken.write_text("no certificate")
    listening = Listening(tls=ServerTls(cert=str(broken), key=str(broken)))
    with pytest.raises(ServerStartFailed):
        await EmbeddedServer(tmp_path / "data", listening=listening).start()
