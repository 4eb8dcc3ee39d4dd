"""Nodes on other machines, over ssh: what the engines `ssh`, `aws`, `gcp` and `azure` have in common.

iroh-tinker's own hands scripts to ssh without quotes, so they run in the wrong folder, and knows processes by number
only. Here a program is sent along that marks what it starts and finds by the mark what runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
from iroh_tinker.cloud.engines import ClusterInfo
from iroh_tinker.cloud.engines.ssh import SshEngine

from elasticgrid.core.errors import EngineError, SetupFailed
from elasticgrid.launcher.bundle_store import write_atomically
from elasticgrid.launcher.engines.ssh_calls import SshCalls
from elasticgrid.launcher.launch_files import BUNDLE_FILE, CACHES_KEY, CREDENTIALS_KEY, HOSTS_FILE, BundleFile
from elasticgrid.launcher.secret_files import brought_secrets

T = TypeVar("T")

DEFAULT_ROOT: Final = "~/.elasticgrid"
_CALL_S: Final = 30.0
_SEND_S: Final = 1_800.0
_SETUP_S: Final = 3_600.0
_HOSTS_AT_ONCE: Final = 16
_SETUP_LINES: Final = 40


class RemoteNodes(SshEngine):  # type: ignore[misc] # iroh-tinker ships no types
    """Prepares, starts, watches and stops the processes of one launch on its hosts.

    Parameters of the provider: `python` (an interpreter on the nodes, 3.11 or later, with elasticgrid), `node_python`
    (one of 3.10 or later that is there before the setup command), `remote_dir` (a folder on the nodes for everything),
    `setup_timeout_s`, and those of ssh: `ssh_port`, `ssh_key`, `ssh_opts`.
    """

    #: The launch's folder on the launcher's machine; known as soon as anything is asked.
    _folder = Path()

    def sync(self, cluster: ClusterInfo, workdir: str) -> None:  # noqa: ARG002 - the bundle was made of it
        """Bring the bundle, the credential and the job's secrets to each host, and make the workspace there.

        Raises:
            EngineError: a host cannot be reached or does not do it.
        """
        job_dir = Path(cluster.meta["job_dir"])
        bundle = msgspec.json.decode((job_dir / BUNDLE_FILE).read_bytes(), type=BundleFile)
        path = str(self.spec.extra.get(CREDENTIALS_KEY, ""))
        credential = Path(path).read_bytes() if path else b""
        secrets = brought_secrets(job_dir)
        # Beside the request only how much of what follows is whose.
        private = {"credential": len(credential), "secrets": [(name, len(text)) for name, text in secrets.items()]}
        payload = b"".join((credential, *secrets.values()))

        def bring(host: str, _ranks: list[int]) -> None:
            request = {"digest": bundle.digest}
            if not self._call(host, "has_bundle", request):
                self._call(host, "put_bundle", request, payload=Path(bundle.archive), timeout_s=_SEND_S)
            self._call(host, "prepare", request | private, payload=payload, timeout_s=_SEND_S)

        self._on_each(self._hosts(cluster), bring)

    def setup(self, cluster: ClusterInfo, workdir: str, setup_cmd: str) -> None:  # noqa: ARG002 - it runs in the copy
        """Run the setup command once on each host; what it says is kept in the launch's logs.

        Raises:
            SetupFailed: it ended with another code than 0 somewhere.
            EngineError: a host does not answer, or not in time.
        """
        timeout_s = float(self._params().get("setup_timeout_s") or _SETUP_S)
        logs = Path(cluster.meta["job_dir"]) / "logs"
        logs.mkdir(exist_ok=True)

        def run(host: str, ranks: list[int]) -> None:
            request = {
                "rank": ranks[0],
                "env": self.spec.envs,
                "command": setup_cmd,
                "caches": self.spec.extra.get(CACHES_KEY, []),
                "lines": _SETUP_LINES,
            }
            done = self._call(host, "setup", request, timeout_s=timeout_s)
            (logs / f"setup_{ranks[0]}.log").write_text(str(done["said"]))
            if done["code"]:
                raise SetupFailed(int(done["code"]), str(done["said"]), where=host)

        self._on_each(self._hosts(cluster), run)

    def start(self, cluster: ClusterInfo, commands: dict[int, list[str]], env: dict[str, str]) -> None:
        """Start each rank in the workspace, in a session of its own, with a log and a folder of its own.

        Raises:
            EngineError: one could not be started; others may run.
        """

        def begin(host: str, ranks: list[int]) -> dict[str, int]:
            words = {rank: self._remote_command(commands[rank]) for rank in ranks}
            started = self._call(host, "start", {"commands": words, "env": env})
            return {str(rank): int(pid) for rank, pid in started.items()}

        found = self._on_each(self._hosts(cluster), begin)
        cluster.meta["pids"] = {int(rank): pid for started in found.values() for rank, pid in started.items()}

    def status(self, cluster: ClusterInfo) -> dict[int, str]:
        """`running`, `stopped`, or `unknown` for the ranks of a host that does not answer."""
        hosts = self._hosts(cluster)

        def ask(host: str, ranks: list[int]) -> dict[str, str]:
            try:
                answer = self._call(host, "status", {"ranks": ranks})
            except EngineError:
                return {str(rank): "unknown" for rank in ranks}
            return {str(rank): str(status) for rank, status in answer.items()}

        found = self._on_each(hosts, ask)
        known = {int(rank): status for statuses in found.values() for rank, status in statuses.items()}
        return {node.rank: known.get(node.rank, "stopped") for node in cluster.nodes}

    def stop(self, cluster: ClusterInfo) -> None:
        """Ask all to end, wait as long as the grace says, and kill what is left, on every host that answers.

        Raises:
            EngineError: a host does not answer, so nothing is known of what runs there.
        """
        grace_s = self.spec.recovery.signal_grace_s

        def end(host: str, _ranks: list[int]) -> None:
            if not self._call(host, "stop", {"grace_s": grace_s}, timeout_s=_CALL_S + 2 * grace_s):
                raise EngineError("something of the launch still runs", where=host)

        self._on_each(self._hosts(cluster), end)

    def logs(self, cluster: ClusterInfo, rank: int, tail: int = 50) -> str:
        """The last lines of a rank's output; empty when there is none.

        Raises:
            EngineError: its host does not answer.
        """
        host = self._hosts(cluster).get(rank)
        return str(self._call(host, "logs", {"rank": rank, "lines": tail})) if host is not None else ""

    def _call(
        self,
        host: str,
        operation: str,
        request: Mapping[str, Any],
        *,
        payload: bytes | Path = b"",
        timeout_s: float = _CALL_S,
    ) -> Any:
        whole = {"launch": self.spec.name, "root": self._root(), **request}
        calls = SshCalls(self._ssh_base(), str(self._params().get("node_python") or "python3"))
        return calls(host, operation, whole, payload=payload, timeout_s=timeout_s)

    def _root(self) -> str:
        return str(self._params().get("remote_dir") or DEFAULT_ROOT)

    def _remote_command(self, command: list[str]) -> list[str]:
        """The runner's command with the node's interpreter, its folder, and its own modules before the job's."""
        python = str(self._params().get("python") or "python3")
        words = list(command)
        words[0] = python
        if "--job-dir" in words:
            words[words.index("--job-dir") + 1] = "../runner"
        return without_workdir_modules(words)

    def _hosts(self, cluster: ClusterInfo) -> dict[int, str]:
        """The host of each rank: as recorded with the launch, or as noted when it was given them."""
        self._folder = Path(cluster.meta["job_dir"])
        hosts = {node.rank: node.host for node in cluster.nodes if node.host}
        noted = read_hosts(self._folder)
        return hosts or {node.rank: noted[node.rank] for node in cluster.nodes if node.rank < len(noted)}

    def _on_each(self, hosts: Mapping[int, str], do: Callable[[str, list[int]], T]) -> dict[str, T]:
        """Do something once on each host, on all of them; the first error is raised when all are done."""
        ranks: dict[str, list[int]] = {}
        for rank, host in sorted(hosts.items()):
            ranks.setdefault(host, []).append(rank)
        if not ranks:
            return {}
        with ThreadPoolExecutor(min(_HOSTS_AT_ONCE, len(ranks))) as threads:
            futures = {host: threads.submit(do, host, mine) for host, mine in ranks.items()}
        return {host: future.result() for host, future in futures.items()}


def without_workdir_modules(command: list[str]) -> list[str]:
    """The runner's command, such that a `queue.py` in the job's folder does not stand in for Python's own."""
    return [command[0], "-P", *command[1:]] if command[1:2] == ["-m"] else command


def read_hosts(job_dir: Path) -> list[str]:
    """The hosts that a launch was given, by rank; none when it was given none."""
    try:
        return msgspec.json.decode((job_dir / HOSTS_FILE).read_bytes(), type=list[str])
    except FileNotFoundError:
        return []


def write_hosts(job_dir: Path, hosts: Iterable[str]) -> None:
    """Note them."""
    job_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_atomically(job_dir / HOSTS_FILE, msgspec.json.encode(list(hosts)))
