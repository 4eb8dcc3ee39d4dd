"""The engine `ssh` on real hosts: what runs there, what is known of it, and what is left."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import network_hosts
import pytest
from iroh_tinker.cloud.engines import ClusterInfo, create_engine
from iroh_tinker.cloud.spec import spec_from_dict
from launcher_bench import TIMEOUT_S, Bench, eventually, running
from nats.aio.client import Client
from network_hosts import Network

from elasticgrid import environment
from elasticgrid.bus.embedded import EmbeddedServer
from elasticgrid.bus.follower import Follower
from elasticgrid.bus.subjects import SAMPLES_ROOT, SAMPLES_STREAM
from elasticgrid.clock import SystemClock
from elasticgrid.core import events as ev
from elasticgrid.core.errors import EngineError, NodeUnreachable
from elasticgrid.core.spec import JobSpec, ProviderSpec, ScalingPolicy
from elasticgrid.decider.service import Decider
from elasticgrid.launcher.bundle import contents, pack
from elasticgrid.launcher.config import LauncherConfig
from elasticgrid.launcher.engines import register_engines
from elasticgrid.launcher.engines.ssh import SshHosts
from elasticgrid.launcher.launch_files import BUNDLE_FILE, CACHES_KEY, CREDENTIALS_KEY, BundleFile
from elasticgrid.launcher.secret_files import bring_secrets
from elasticgrid.log.event_reader import event_reader
from elasticgrid.log.jetstream import JetStreamLog

NOT_PERMITTED = network_hosts.why_not()
pytestmark = [
    pytest.mark.ssh,
    pytest.mark.process,
    pytest.mark.server,
    pytest.mark.skipif(bool(NOT_PERMITTED), reason=NOT_PERMITTED),
]

SLEEP = "import time; print('ready', flush=True); time.sleep(600)"
STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {SLEEP}"
SECRET = "hunter2-hunter2"


def python(code: str, *words: str) -> list[str]:
    return [sys.executable, "-S", "-c", code, *words]


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Network]:
    """Three hosts."""
    with network_hosts.network(tmp_path / "net", 3) as found:
        yield found


class Launched:
    """A launch `t1` of two ranks on the first hosts of a network, and its engine."""

    def __init__(self, folder: Path, lab: Network, hosts: list[str]) -> None:
        register_engines()
        self.folder = folder
        self.lab = lab
        self.hosts = hosts
        self.job_dir = folder / "launches" / "t1"
        self.job_dir.mkdir(parents=True)
        work = folder / "work"
        (work / "src").mkdir(parents=True)
        (work / "src" / "model.py").write_text("x = 1\n")
        (folder / "node.json").write_text(json.dumps({"user": "node", "password": SECRET}))
        bundle = pack(contents(work), folder / "bundles")
        (self.job_dir / BUNDLE_FILE).write_text(json.dumps({"archive": str(bundle.archive), "digest": bundle.digest}))
        assert BundleFile(str(bundle.archive), bundle.digest)
        self.engine = self.new_engine()
        self.cluster: ClusterInfo | None = None

    def new_engine(self, **changes: object) -> SshHosts:
        ssh = self.lab.ssh_parameters
        parameters = {"hosts": self.hosts, "python": sys.executable, "node_python": sys.executable}
        document = {
            "name": "t1",
            "run": "unused",
            "num_nodes": 2,
            "envs": {"ELASTICGRID_JOB": "j1"},
            "recovery": {"mode": "none", "max_restarts": 0, "signal_grace_s": 0},
            "resources": {
                "infra": ["ssh"],
                "ssh_key": ssh["ssh_key"],
                "ssh_opts": ssh["ssh_opts"].split(),
                **parameters,
                **changes,
            },
            CREDENTIALS_KEY: str(self.folder / "node.json"),
            CACHES_KEY: ["tools"],
        }
        engine = create_engine("ssh", spec_from_dict(document))
        assert isinstance(engine, SshHosts)
        return engine

    def prepare(self) -> ClusterInfo:
        self.cluster = self.engine.provision(str(self.job_dir))
        self.engine.sync(self.cluster, str(self.folder / "work"))
        return self.cluster

    async def start(self, *commands: list[str], env: dict[str, str] | None = None) -> ClusterInfo:
        cluster = self.prepare()
        # The engine puts the node's own interpreter into the place of the launcher's.
        self.engine.start(cluster, dict(enumerate(commands)), env or {})
        await eventually(lambda: all("ready" in self.log(rank) for rank in range(len(commands))))
        return cluster

    def log(self, rank: int) -> str:
        assert self.cluster is not None
        return self.engine.logs(self.cluster, rank)

    def root(self, host: int) -> Path:
        return self.lab.hosts[host].home / ".elasticgrid"


@pytest.fixture
def launched(tmp_path: Path, lab: Network) -> Launched:
    return Launched(tmp_path, lab, lab.targets)


@pytest.fixture
def on_one_host(tmp_path: Path, lab: Network) -> Launched:
    return Launched(tmp_path, lab, [lab.targets[0], lab.targets[0]])


async def test_words_and_variables_arrive_as_they_were_written_in_a_copy_of_the_workdir(launched: Launched) -> None:
    words = ('it\'s a "test"', "a;b $HOME `id` | &", "", "*", "\\")
    code = "import json, os, sys; print(json.dumps([sys.argv[1:], os.environ['ODD'], os.getcwd(), os.listdir('src')]));"
    odd = "two\nlines and '\"$(id)"
    await launched.start(python(code + SLEEP, *words), python(SLEEP), env={"ODD": odd})
    said, variable, folder, files = json.loads(launched.log(0).splitlines()[0])
    assert (tuple(said), variable, files) == (words, odd, ["model.py"])
    assert folder == "/root/.elasticgrid/launches/t1/workspace"
    assert (launched.root(0) / "launches/t1/workspace").is_dir()
    assert not (launched.root(2) / "launches").exists()


async def test_each_node_of_one_host_has_a_session_and_a_folder_of_its_own(on_one_host: Launched) -> None:
    where = "import os; print(os.environ['ELASTICGRID_NODE_DIR'], os.getsid(0) == os.getpid());"
    await on_one_host.start(python(where + SLEEP), python(where + SLEEP))
    nodes = "/root/.elasticgrid/launches/t1/nodes"
    assert [on_one_host.log(rank).splitlines()[0] for rank in (0, 1)] == [f"{nodes}/0 True", f"{nodes}/1 True"]


async def test_the_credential_is_a_private_file_there_and_in_no_argument_and_no_variable(launched: Launched) -> None:
    where = "import os; print(os.environ['ELASTICGRID_CREDENTIALS']);"
    await launched.start(python(where + SLEEP), python(SLEEP))
    assert launched.log(0).splitlines()[0] == "/root/.elasticgrid/launches/t1/node.json"
    for host in (0, 1):
        file = launched.root(host) / "launches/t1/node.json"
        assert json.loads(file.read_text())["password"] == SECRET
        assert file.stat().st_mode & 0o777 == 0o600
        assert SECRET not in launched.lab.hosts[host].told()


async def test_secrets_are_private_files_there_until_the_launch_is_stopped(launched: Launched) -> None:
    token = launched.folder / "hf.token"
    token.write_text(f"{SECRET}\n")
    token.chmod(0o600)
    bring_secrets({"HF_TOKEN": str(token), "OTHER": str(token)}, launched.job_dir)
    where = "import os; print(os.environ['ELASTICGRID_SECRETS_DIR']);"
    env = {environment.SECRETS_DIR: str(launched.job_dir / "secrets")}
    cluster = await launched.start(python(where + SLEEP), python(SLEEP), env=env)
    assert launched.log(0).splitlines()[0] == "/root/.elasticgrid/launches/t1/secrets"
    launch = launched.root(0) / "launches/t1"
    assert sorted(path.name for path in (launch / "secrets").iterdir()) == ["HF_TOKEN", "OTHER"]
    assert (launch / "secrets").stat().st_mode & 0o777 == 0o700
    for file in (launch / "secrets").iterdir():
        assert file.read_text() == f"{SECRET}\n"
        assert file.stat().st_mode & 0o777 == 0o600
    assert json.loads((launch / "node.json").read_text())["password"] == SECRET
    assert all(SECRET not in host.told() for host in launched.lab.hosts)
    launched.engine.stop(cluster)
    assert not (launch / "secrets").exists()


async def test_stopping_leaves_no_process_no_credential_and_no_workspace_but_the_logs(launched: Launched) -> None:
    elsewhere = (
        f"import subprocess, sys; subprocess.Popen([sys.executable, '-S', '-c', {STUBBORN!r}], start_new_session=True);"
    )
    cluster = await launched.start(python(elsewhere + SLEEP), python(STUBBORN))
    host = launched.lab.hosts[0]
    await eventually(lambda: len(host.processes("time.sleep(600)")) == 2)
    launched.engine.stop(cluster)
    assert [each.processes("time.sleep(600)") for each in launched.lab.hosts] == [[], [], []]
    assert launched.engine.status(cluster) == {0: "stopped", 1: "stopped"}
    left = {path.name for path in (launched.root(0) / "launches/t1").iterdir()}
    assert {"logs", "stopped"} <= left
    assert left.isdisjoint({"node.json", "workspace"})


async def test_a_start_that_arrives_after_the_stop_starts_nothing(launched: Launched) -> None:
    cluster = launched.prepare()
    unrecorded = ClusterInfo("t1", "ssh", cluster.nodes, cluster.meta)
    launched.new_engine().stop(unrecorded)
    with pytest.raises(EngineError, match="stopped already"):
        launched.engine.start(unrecorded, {0: python(SLEEP), 1: python(SLEEP)}, {})
    with pytest.raises(EngineError, match="stopped already"):
        launched.engine.setup(unrecorded, "", "sleep 600")
    assert [host.processes("sleep") for host in launched.lab.hosts] == [[], [], []]


async def test_an_engine_that_was_told_nothing_finds_what_runs_by_what_was_noted(launched: Launched) -> None:
    cluster = await launched.start(python(SLEEP), python(SLEEP))
    for node in cluster.nodes:
        node.host = ""
    unrecorded = ClusterInfo("t1", "ssh", cluster.nodes, {"job_dir": str(launched.job_dir), "pids": {}})
    assert launched.new_engine().status(unrecorded) == {0: "running", 1: "running"}
    launched.new_engine().stop(unrecorded)
    assert [host.processes("time.sleep(600)") for host in launched.lab.hosts] == [[], [], []]


async def test_a_host_that_does_not_answer_is_unknown_and_not_stopped(launched: Launched) -> None:
    cluster = await launched.start(python(SLEEP), python(SLEEP))
    launched.lab.hosts[1].unplug()
    engine = launched.new_engine(ssh_opts=["-o", "ConnectTimeout=1", *launched.lab.ssh_parameters["ssh_opts"].split()])
    assert engine.status(cluster) == {0: "running", 1: "unknown"}
    with pytest.raises(NodeUnreachable):
        engine.stop(cluster)
    # What could be stopped was, and the host that did not answer is still this launch's.
    assert launched.lab.hosts[0].processes("time.sleep(600)") == []
    launched.lab.hosts[1].plug_in()
    assert launched.engine.status(cluster) == {0: "stopped", 1: "running"}
    launched.engine.stop(cluster)
    assert launched.engine.status(cluster) == {0: "stopped", 1: "stopped"}


async def test_setup_runs_once_on_a_host_before_its_nodes_and_what_it_says_is_kept(on_one_host: Launched) -> None:
    cluster = on_one_host.prepare()
    count = 'echo "set up in $PWD as $ELASTICGRID_JOB"; echo x >> $ELASTICGRID_CACHE_DIR/tools/count'
    on_one_host.engine.setup(cluster, "", count)
    kept = on_one_host.job_dir / "logs" / "setup_0.log"
    assert kept.read_text() == "set up in /root/.elasticgrid/launches/t1/workspace as j1"
    assert (on_one_host.root(0) / "caches/tools/count").read_text() == "x\n"
    assert (on_one_host.root(0) / "caches/tools/.ready").exists()


async def test_a_cache_is_kept_when_its_setup_succeeded_and_is_empty_again_when_it_did_not(
    on_one_host: Launched,
) -> None:
    cluster = on_one_host.prepare()
    engine = on_one_host.engine
    fill = "cd $ELASTICGRID_CACHE_DIR/tools; ls -a | tr '\\n' ' '; touch filled;"
    with pytest.raises(EngineError, match="ended with 3"):
        engine.setup(cluster, "", fill + "exit 3")
    engine.setup(cluster, "", fill)
    engine.setup(cluster, "", fill)
    said = (on_one_host.root(0) / "launches/t1/logs/setup.log").read_text()
    assert said == ". .. . .. . .. .ready filled "


async def test_a_bundle_is_sent_once_to_a_host(launched: Launched) -> None:
    cluster = launched.prepare()
    (sent,) = (launched.root(0) / "bundles").iterdir()
    before = sent.stat().st_ino
    launched.engine.sync(cluster, "")
    assert sent.stat().st_ino == before


async def test_hosts_are_free_for_one_launch_at_a_time(launched: Launched, tmp_path: Path) -> None:
    launched.prepare()
    other = tmp_path / "launches" / "t2"
    other.mkdir()
    with pytest.raises(EngineError, match="no capacity: 2 hosts are wanted and 1 of 3 are free"):
        launched.new_engine().provision(str(other))
    assert launched.cluster is not None
    launched.engine.stop(launched.cluster)
    assert len(launched.new_engine().provision(str(other)).nodes) == 2


async def test_a_free_host_that_does_not_answer_is_passed_over(launched: Launched) -> None:
    launched.lab.hosts[0].power_off()
    engine = launched.new_engine(ssh_opts=["-o", "ConnectTimeout=1", *launched.lab.ssh_parameters["ssh_opts"].split()])
    cluster = engine.provision(str(launched.job_dir))
    assert [node.host for node in cluster.nodes] == launched.lab.targets[1:]


# --------------------------------------------------------------------------------------------------------------------
# Through the launcher
# --------------------------------------------------------------------------------------------------------------------

#: Takes steps in time with the other ranks, over the network; rank 0 commits what it has when it is asked to stop.
TRAINER = """
import os, socket, time
import elasticgrid
from elasticgrid.publish import checkpoint

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
place = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
if rank == 0:
    with socket.create_server(place) as server:
        peers = [server.accept()[0] for _ in range(world - 1)]
else:
    while True:
        try:
            peers = [socket.create_connection(place)]
            break
        except ConnectionRefusedError:
            time.sleep(0.05)
step = int(os.environ["ELASTICGRID_RESUME_STEP"])
pub = elasticgrid.publisher()
while not pub.should_stop():
    with pub.step(tokens=8):
        time.sleep(0.05)
        try:
            for peer in peers:
                peer.sendall(b"x")
            if not all(peer.recv(1) for peer in peers):
                raise ConnectionError
        except ConnectionError:
            raise SystemExit(75)  # a node is gone, which is not this program's fault
        step += 1
if rank == 0:
    uri = checkpoint.write(
        os.environ["ELASTICGRID_CHECKPOINT_DIR"],
        step,
        {"state": b"%d" % step},
        round=int(os.environ["ELASTICGRID_ROUND"]),
    )
    pub.checkpointed(step, uri)
pub.close()
"""


class Grid(Bench):
    """A bench on a real log whose provider is a network of hosts."""

    def __init__(self, folder: Path, client: Client, lab: Network) -> None:
        super().__init__(folder, JetStreamLog(client), client)
        self.lab = lab
        self.work = folder / "work"
        self.work.mkdir()
        (self.work / "train.py").write_text(TRAINER)
        (self.work / ".env").write_text(f"TOKEN={SECRET}")

    def config(self, **changes: Any) -> LauncherConfig:
        return super().config(**({"node_credentials": "", "remote_poll_s": 0.1} | changes))

    async def hosts(self, **params: str) -> None:
        provided = ProviderSpec(
            name="lab",
            engine="ssh",
            max_nodes=3,
            params={
                "hosts": " ".join(self.lab.targets),
                "python": sys.executable,
                "node_python": sys.executable,
                "shared_dir": str(self.folder / "shared"),
                **self.lab.ssh_parameters,
                **params,
            },
        )
        await self.fact(ev.ProviderDeclared(provider=provided), tenant="_grid", job="fleet")

    async def train(self, nodes: int = 2) -> None:
        spec = JobSpec(
            name="j1",
            command=("python", "train.py"),
            workdir=str(self.work),
            min_nodes=nodes,
            max_nodes=nodes,
            grace_ms=10_000,
            scaling=ScalingPolicy(min_evidence_ms=1_000),
        )
        await self.fact(ev.JobSubmitted(spec=spec))


@pytest.fixture
async def grid(tmp_path: Path, bus_client: Client, lab: Network) -> AsyncIterator[Grid]:
    grid = Grid(tmp_path, bus_client, lab)
    yield grid
    grid.kill_everything()


@contextlib.asynccontextmanager
async def deciding(grid: Grid) -> AsyncIterator[None]:
    assert grid.client is not None
    client = grid.client

    def samples(*, after: int) -> Follower:
        return Follower(client, SAMPLES_STREAM, f"{SAMPLES_ROOT}.>", after=after, lossy=True)

    task = asyncio.create_task(Decider(grid.log, samples, SystemClock()).run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_job_trains_over_two_hosts_survives_the_kill_of_one_agent_and_leaves_nothing(
    grid: Grid, lab: Network, embedded_server: EmbeddedServer
) -> None:
    url = embedded_server.url
    async with lab.relay_to(int(url.rsplit(":", 1)[1])) as port, asyncio.timeout(2 * TIMEOUT_S):
        await grid.hosts(nats_url=f"nats://{lab.address}:{port}")
        settings = {
            "agent_command": (),
            "authority": str(embedded_server.authority_file),
            "node_credentials": "",
            "own_nats_url": url,
        }
        assert grid.client is not None
        async with event_reader(grid.client), running(grid.launcher(**settings)), deciding(grid):
            await grid.train()
            joined = await grid.until(ev.NodeJoined, 2)
            assert {each.host for each in joined} == {host.address for host in lab.hosts[:2]}
            await grid.until(ev.NodeStarted, 2)
            workspaces = [host.home / ".elasticgrid/launches" for host in lab.hosts[:2]]
            assert [[path.name for path in each.glob("*/workspace/*")] for each in workspaces] == [["train.py"]] * 2
            assert not list(lab.hosts[0].home.glob("**/.env"))

            lab.hosts[1].kill("elasticgrid.agent")
            (lost,) = await grid.until(ev.NodeLost)
            assert lost.evidence == "process_gone"
            assert lost.node == next(each.node for each in joined if each.host == lab.hosts[1].address)
            # The third host takes its place in a second round.
            await grid.until(ev.NodeStarted, 4)
            await grid.fact(ev.JobCancelRequested())
            (committed,) = await grid.until(ev.NodeCheckpointed)
            assert committed.checkpoint.step > 0
            await grid.until(ev.NodeLeft, 2)
            await grid.until(ev.LaunchStopped, 2)
            await grid.until(ev.OutcomeDecided)
    assert [host.processes("python") for host in lab.hosts] == [[], [], []]
    assert not [path for host in lab.hosts for path in host.home.glob("**/node.json")]


async def test_a_host_out_of_reach_loses_no_node_until_it_was_silent_for_long(grid: Grid, lab: Network) -> None:
    await grid.hosts(ssh_opts=f"-o ConnectTimeout=1 {lab.ssh_parameters['ssh_opts']}")
    await grid.submit(workdir=str(grid.work))
    await grid.place(nodes=2, provider="lab")
    async with running(grid.launcher(silent_after_s=600.0)):
        await grid.handle()
        lab.hosts[1].unplug()
        await grid.provider("here")
        for number in range(2, 5):
            # Each of these takes longer than several looks at the host that is away.
            await grid.place(f"p{number}a1", provider="here")
            await grid.until(ev.LaunchStarted, number)
        lab.hosts[0].kill("time.sleep(600)")
        (lost,) = await grid.until(ev.NodeLost)
        assert (lost.node, lost.evidence) == ("p1a1-0", "process_gone")
        assert (await grid.kinds()).count("node_lost") == 1
        assert lab.hosts[1].processes("time.sleep(600)")
    async with running(grid.launcher(silent_after_s=0.5)):
        _, silent = await grid.until(ev.NodeLost, 2)
        assert (silent.node, silent.evidence) == ("p1a1-1", "silent")
        # Its host is asked to stop it for as long as it does not say that it did.
        lab.hosts[1].plug_in()
        await grid.until(ev.LaunchStopped)
    assert lab.hosts[1].processes("time.sleep(600)") == []


@pytest.mark.parametrize(
    ("params", "failure", "words"),
    [
        ({"ssh_key": "/dev/null"}, "auth", "Permission denied"),
        ({"hosts": "root@10.213.251.9", "ssh_opts": "-o ConnectTimeout=1"}, "transient", "10.213.251.9"),
        ({"hosts": "-oProxyCommand=touch${IFS}owned"}, "invalid", "is no ssh target"),
        ({"node_python": "/no/such/python"}, "transient", "/no/such/python"),
        ({"remote_dir": "/proc/nowhere"}, "invalid", "/proc/nowhere"),
    ],
)
async def test_what_a_host_says_is_kept_and_classified(
    grid: Grid, params: dict[str, str], failure: str, words: str
) -> None:
    await grid.hosts(**params)
    await grid.submit(workdir=str(grid.work))
    await grid.place(provider="lab")
    async with running(grid.launcher()):
        (failed,) = await grid.until(ev.LaunchFailed)
    assert words in failed.text
    assert failed.failure == failure
    assert await grid.kinds() == ["requested", "failed"]


async def test_a_setup_that_fails_is_the_jobs_fault_and_its_words_are_kept(grid: Grid, lab: Network) -> None:
    await grid.hosts(setup="echo of the provider")
    await grid.submit(workdir=str(grid.work), setup="echo permission denied\nexit 4")
    await grid.place(nodes=2, provider="lab")
    async with running(grid.launcher()):
        (failed,) = await grid.until(ev.LaunchFailed)
    assert failed.failure == "invalid"
    assert "the setup command ended with 4: of the provider\npermission denied" in failed.text
