"""Hosts of a network of this machine's own: each a network, process and mount namespace with a real sshd in it.

They share this machine's files, as hosts do that mount the same folders; their home folders are their own. Everything
is gone when the network is closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Final

SSHD: Final = "/usr/sbin/sshd"
_UP_S: Final = 20.0


def why_not() -> str:
    """Why there can be no such hosts here; empty when there can."""
    if os.geteuid() != 0:
        return "network namespaces are made by root only"
    missing = [tool for tool in (SSHD, "ssh", "ssh-keygen", "ip", "unshare", "mount") if shutil.which(tool) is None]
    if missing:
        return f"not installed: {', '.join(missing)}"
    probe = f"egprobe{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", probe], capture_output=True, text=True, check=False)
    if made.returncode != 0:
        return f"network namespaces are not permitted: {made.stderr.strip()}"
    try:
        bridged = subprocess.run(
            ["ip", "-n", probe, "link", "add", "b0", "type", "bridge"], capture_output=True, text=True, check=False
        )
        return f"bridges are not permitted: {bridged.stderr.strip()}" if bridged.returncode != 0 else ""
    finally:
        subprocess.run(["ip", "netns", "delete", probe], check=True)


class Host:
    """One host: it runs from `start` until `power_off`."""

    def __init__(self, network: Network, number: int) -> None:
        self.address = f"{network.prefix}.{number + 1}"
        self.namespace = f"eg{os.getpid()}n{number}"
        self.home = network.folder / f"home{number}"
        self.home.mkdir()
        self._network = network
        self._outside = f"e{os.getpid() % 100_000}v{number}"
        self._log = network.folder / f"sshd{number}.log"
        self._config = network.folder / f"sshd{number}.conf"
        self._config.write_text(
            f"ListenAddress {self.address}\nHostKey {network.folder}/host_key\nPidFile none\nUsePAM no\n"
            f"AuthorizedKeysFile {network.folder}/user_key.pub\nStrictModes no\nPermitRootLogin prohibit-password\n"
            "PasswordAuthentication no\nMaxStartups 100\n"
        )
        self._machine: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Make the namespaces, plug them in, and wait until sshd listens."""
        _ip("netns", "add", self.namespace)
        _ip("link", "add", self._outside, "type", "veth", "peer", "name", "eth0", "netns", self.namespace)
        _ip("link", "set", self._outside, "master", self._network.bridge, "up")
        _ip("-n", self.namespace, "link", "set", "lo", "up")
        _ip("-n", self.namespace, "address", "add", f"{self.address}/24", "dev", "eth0")
        _ip("-n", self.namespace, "link", "set", "eth0", "up")
        _ip("-n", self.namespace, "route", "add", "default", "via", self._network.address)
        inside = (
            f"mount -t tmpfs tmpfs /run && mkdir /run/sshd && {self._keep_python()} mount --rbind {self.home} /root"
            f" && exec {SSHD} -D -e -f {self._config}"
        )
        unshared = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", inside]
        with self._log.open("wb") as log:
            self._machine = subprocess.Popen(
                ["ip", "netns", "exec", self.namespace, *unshared],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # What the tests are told by their environment, a machine elsewhere is not.
                env={"PATH": os.environ["PATH"]},
            )
        deadline_s = time.monotonic() + _UP_S
        while "Server listening" not in self._log.read_text():
            assert self._machine.poll() is None, self._log.read_text()
            assert time.monotonic() < deadline_s, self._log.read_text()
            time.sleep(0.02)

    def _keep_python(self) -> str:
        """Keeps the interpreter of the tests where it is when that is the home folder, which the host's own hides."""
        installed = Path(sys.base_prefix).resolve()
        if not installed.is_relative_to("/root"):
            return ""
        place = self.home / installed.relative_to("/root")
        place.mkdir(parents=True)
        return f"mount --bind {installed} {place} &&"

    def unplug(self) -> None:
        """Nothing reaches the host any more; what runs there goes on."""
        _ip("link", "set", self._outside, "down")

    def plug_in(self) -> None:
        """It is reached again."""
        _ip("link", "set", self._outside, "up")

    def processes(self, words: str) -> list[int]:
        """Processes of the host with these words in their command line, by the numbers they have out here."""
        assert self._machine is not None
        ours = os.readlink(f"/proc/{_first_inside(self._machine.pid)}/ns/pid")
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                command = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                if words in command and os.readlink(path / "ns/pid") == ours:
                    found.append(int(path.name))
        return found

    def told(self) -> str:
        """All arguments and variables of the host's processes."""
        said = []
        for pid in self.processes(""):
            with contextlib.suppress(OSError):
                said += [Path(f"/proc/{pid}/{file}").read_text(errors="replace") for file in ("cmdline", "environ")]
        return "\n".join(said)

    def kill(self, words: str) -> None:
        """SIGKILL to each of these processes."""
        for pid in self.processes(words):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def power_off(self) -> None:
        """Everything on the host ends at once."""
        if self._machine is not None:
            # The first process of its namespace takes all others with it.
            with contextlib.suppress(ProcessLookupError, IndexError):
                os.kill(_first_inside(self._machine.pid), signal.SIGKILL)
            self._machine.kill()
            self._machine.wait()
            self._machine = None
        # The namespace goes when its last process has; the end of it out here need not wait for that.
        subprocess.run(["ip", "link", "delete", self._outside], capture_output=True, check=False)
        subprocess.run(["ip", "netns", "delete", self.namespace], capture_output=True, check=False)


class Network:
    """A bridge on this machine and the hosts at it. As a context manager it is gone afterwards."""

    def __init__(self, folder: Path, hosts: int) -> None:
        self.folder = folder
        self.bridge = f"e{os.getpid() % 100_000}br"
        self.prefix = f"10.213.{os.getpid() % 250}"
        self.address = f"{self.prefix}.1"
        self.hosts = [Host(self, number) for number in range(1, hosts + 1)]

    def __enter__(self) -> Network:
        try:
            for name in ("host_key", "user_key"):
                subprocess.run(
                    ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.folder / name)], check=True
                )
            _ip("link", "add", self.bridge, "type", "bridge")
            _ip("address", "add", f"{self.address}/24", "dev", self.bridge)
            _ip("link", "set", self.bridge, "up")
            for host in self.hosts:
                host.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Power all hosts off and take the network away."""
        for host in self.hosts:
            host.power_off()
        subprocess.run(["ip", "link", "delete", self.bridge], capture_output=True, check=False)

    @property
    def ssh_parameters(self) -> dict[str, str]:
        """What a provider of these hosts is configured with, besides them."""
        known = self.folder / "known_hosts"
        return {"ssh_key": str(self.folder / "user_key"), "ssh_opts": f"-o UserKnownHostsFile={known}"}

    @property
    def targets(self) -> list[str]:
        return [f"root@{host.address}" for host in self.hosts]

    @contextlib.asynccontextmanager
    async def relay_to(self, port: int) -> AsyncIterator[int]:
        """A port of this machine in the hosts' network that leads to one of its loopback address."""
        connections: set[asyncio.Task[None]] = set()

        async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.closing(writer), contextlib.suppress(OSError):
                while data := await reader.read(65_536):
                    writer.write(data)
                    await writer.drain()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", port)
            for work in (pump(reader, inner_writer), pump(inner_reader, writer)):
                task = asyncio.create_task(work)
                connections.add(task)
                task.add_done_callback(connections.discard)

        server = await asyncio.start_server(serve, self.address, 0)
        try:
            yield int(server.sockets[0].getsockname()[1])
        finally:
            server.close()
            for task in list(connections):
                task.cancel()
            await asyncio.gather(*connections, return_exceptions=True)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


def _first_inside(pid: int) -> int:
    """The first process of the namespace that `unshare`, which `ip` became, has made."""
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


@contextlib.contextmanager
def network(folder: Path, hosts: int) -> Iterator[Network]:
    """A network with so many hosts; gone when the block ends."""
    folder.mkdir()
    with Network(folder, hosts) as found:
        yield found
