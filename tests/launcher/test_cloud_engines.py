"""Engines that create machines: what their cloud says is kept, what they created is found, and nothing is left."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import clouds
import pytest
from clouds import Cloud
from iroh_tinker.cloud.engines import ClusterInfo, create_engine
from iroh_tinker.cloud.engines.base import Node
from iroh_tinker.cloud.spec import spec_from_dict
from launcher_bench import Bench, eventually, running

from elasticgrid.clock import SystemClock
from elasticgrid.core import events as ev
from elasticgrid.core.errors import EngineError
from elasticgrid.core.failures import classify
from elasticgrid.core.spec import Market, ProviderSpec
from elasticgrid.launcher.engines import register_engines
from elasticgrid.launcher.engines.cloud import CloudNodes
from elasticgrid.launcher.engines.remote import read_hosts
from elasticgrid.log.memory import MemoryLog

pytestmark = pytest.mark.process

FAMILIES = ["aws", "gcp", "azure"]
TEXTS = [(family, text) for family in FAMILIES for text in clouds.recorded(family)]


@pytest.fixture(scope="session")
def aws_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with clouds.moto_server(tmp_path_factory.mktemp("moto")) as port:
        yield port


@pytest.fixture
def family() -> str:
    return "gcp"


@pytest.fixture
def cloud(family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Cloud:
    """A cloud with nothing in it."""
    found = Cloud(family, tmp_path / "cloud")
    monkeypatch.setenv("PATH", clouds.path_with(found.bin))
    if family == "aws":
        why_not = clouds.why_no_aws()
        if why_not:
            pytest.skip(why_not)
        port = request.getfixturevalue("aws_port")
        for name, value in clouds.aws_environment(port, tmp_path).items():
            monkeypatch.setenv(name, value)
        clouds.reset_moto(port)
    return found


@pytest.fixture
async def bench(tmp_path: Path, cloud: Cloud) -> AsyncIterator[Bench]:
    bench = Bench(tmp_path, MemoryLog(SystemClock()))
    work = tmp_path / "work"
    work.mkdir()
    await bench.submit(workdir=str(work))
    yield bench
    bench.kill_everything()


async def offer(bench: Bench, cloud: Cloud, market: Market = "spot", **params: str) -> None:
    provider = ProviderSpec(
        name="far", engine=cloud.engine, market=market, max_nodes=8, params={**cloud.parameters, **params}
    )
    await bench.fact(ev.ProviderDeclared(provider=provider), tenant="_grid", job="fleet")


SETTINGS: dict[str, Any] = {"node_credentials": "", "remote_poll_s": 0.1}


def engine_of(cloud: Cloud, nodes: int = 2, name: str = "default-j1-p1a1", **changes: Any) -> CloudNodes:
    register_engines()
    document = {
        "name": name,
        "run": "unused",
        "num_nodes": nodes,
        "envs": {"ELASTICGRID_ATTEMPT": "p1a1", "ELASTICGRID_JOB": "j1", "ELASTICGRID_TENANT": "default"},
        "recovery": {"mode": "none", "max_restarts": 0, "signal_grace_s": 0},
        "resources": {"infra": [cloud.engine], "use_spot": True, **cloud.parameters, **changes},
    }
    engine = create_engine(cloud.engine, spec_from_dict(document))
    assert isinstance(engine, CloudNodes)
    return engine


def unrecorded(folder: Path, nodes: int = 2) -> ClusterInfo:
    """What a launcher knows of a launch that the one before it had no time to write down."""
    return ClusterInfo("", "", [Node(rank, "") for rank in range(nodes)], {"job_dir": str(folder), "pids": {}})


@pytest.mark.parametrize("family", FAMILIES)
async def test_a_launch_has_machines_with_its_tags_and_none_when_it_is_over(bench: Bench, cloud: Cloud) -> None:
    await offer(bench, cloud)
    await bench.place(nodes=2, provider="far")
    async with running(bench.launcher(**SETTINGS)):
        handle = await bench.handle()
        live = cloud.live()
        assert sorted(live) == [f"it-{handle}-0", f"it-{handle}-1"]
        for tags in live.values():
            assert tags["elasticgrid-launch"] == handle
            assert tags["elasticgrid-attempt"] == "p1a1"
            assert (tags["elasticgrid-tenant"], tags["elasticgrid-job"]) == ("default", "j1")
        assert len(cloud.machines()) == 2
        await bench.drop("p1a1", "p1a1-0", "p1a1-1", provider="far")
        await bench.until(ev.LaunchStopped)
    assert (cloud.live(), cloud.groups(), bench.processes()) == ({}, [], [])
    assert await bench.kinds() == ["requested", "started", "stop_requested", "stopped"]


@pytest.mark.parametrize(("family", "text"), TEXTS, ids=[f"{family}: {text['name']}" for family, text in TEXTS])
def test_what_a_cloud_says_is_kept_word_for_word_and_has_its_class(
    cloud: Cloud, text: dict[str, Any], tmp_path: Path
) -> None:
    cloud.refuse_to_create(text["stderr"], text["exit_code"])
    with pytest.raises(EngineError) as caught:
        engine_of(cloud, nodes=1).provision(str(tmp_path / "launch"))
    assert str(caught.value) == text["stderr"]
    assert classify(str(caught.value), operation="create") == text["failure"]
    assert (cloud.live(), cloud.groups()) == ({}, [])


@pytest.mark.parametrize("family", FAMILIES)
async def test_of_a_launch_that_could_be_created_in_part_nothing_is_left(bench: Bench, cloud: Cloud) -> None:
    text = next(text for text in clouds.recorded(cloud.family) if text["failure"] == "stockout")
    cloud.refuse_to_create(text["stderr"], text["exit_code"], index="1")
    await offer(bench, cloud)
    await bench.place(nodes=3, provider="far")
    async with running(bench.launcher(**SETTINGS)):
        (failed,) = await bench.until(ev.LaunchFailed)
    assert (failed.failure, failed.text) == ("stockout", text["stderr"])
    assert "-0" in cloud.calls()
    assert (cloud.live(), cloud.groups()) == ({}, [])


@pytest.mark.parametrize("family", FAMILIES)
def test_what_cannot_be_cleaned_up_is_said_beside_why_it_should_be(cloud: Cloud, tmp_path: Path) -> None:
    delete = {"aws": "terminate-instances", "gcp": "instances delete", "azure": "group delete"}[cloud.family]
    engine = engine_of(cloud, boot_timeout_s=0.1)
    for host in ("ubuntu", "iotinker"):
        for number in range(10, 13):
            cloud.switch_off(f"{host}@203.0.113.{number}")
    cloud.refuse(delete, stderr="ERROR: 503 Service Unavailable")
    if cloud.family == "aws":
        engine.spec.resources.params["node_python"] = "/no/such/python"
    with pytest.raises(EngineError, match=r"boot timed out after 0\.1 s") as caught:
        engine.provision(str(tmp_path / "launch"))
    assert str(caught.value).endswith("\nnot cleaned up: ERROR: 503 Service Unavailable")
    cloud.refuse()
    engine_of(cloud).stop(unrecorded(tmp_path / "launch"))
    assert (cloud.live(), cloud.groups()) == ({}, [])


@pytest.mark.parametrize("family", ["aws"])
def test_a_second_call_for_the_same_machine_is_answered_with_the_first_one(cloud: Cloud, tmp_path: Path) -> None:
    engine_of(cloud).provision(str(tmp_path / "launch"))
    (tmp_path / "launch" / "hosts.json").unlink()
    engine_of(cloud).provision(str(tmp_path / "launch"))
    assert cloud.created() == 2
    calls = [line for line in cloud.calls().splitlines() if "run-instances" in line]
    assert sorted(line.split("--client-token ")[1].split()[0] for line in calls) == [
        "it-default-j1-p1a1-0",
        "it-default-j1-p1a1-1",
    ]


@pytest.mark.parametrize("family", ["gcp"])
def test_a_name_that_is_taken_creates_nothing(cloud: Cloud, tmp_path: Path) -> None:
    engine_of(cloud, nodes=1).provision(str(tmp_path / "launch"))
    with pytest.raises(EngineError, match="already exists"):
        engine_of(cloud, nodes=1).provision(str(tmp_path / "launch"))


@pytest.mark.parametrize("family", FAMILIES)
def test_machines_are_found_by_their_launch_whatever_was_written_down(cloud: Cloud, tmp_path: Path) -> None:
    engine_of(cloud).provision(str(tmp_path / "launch"))
    (tmp_path / "launch" / "hosts.json").unlink()
    assert engine_of(cloud).launches() == {"default-j1-p1a1"}
    engine_of(cloud).stop(unrecorded(tmp_path / "launch"))
    assert (cloud.live(), engine_of(cloud).launches()) == ({}, set())


@pytest.mark.parametrize("family", FAMILIES)
def test_a_machine_that_does_not_answer_is_unknown_while_its_cloud_has_it_or_does_not_say(
    cloud: Cloud, tmp_path: Path
) -> None:
    folder = tmp_path / "launch"
    engine_of(cloud).provision(str(folder))
    host = read_hosts(folder)[1]
    cloud.switch_off(host)
    assert engine_of(cloud).status(unrecorded(folder)) == {0: "stopped", 1: "unknown"}
    look = {"aws": "describe-instances", "gcp": "instances describe", "azure": "vm show"}[cloud.family]
    cloud.refuse(look, stderr="ERROR: 503 Service Unavailable")
    assert engine_of(cloud).status(unrecorded(folder)) == {0: "stopped", 1: "unknown"}
    cloud.refuse()
    cloud.preempt("it-default-j1-p1a1-1")
    assert engine_of(cloud).status(unrecorded(folder)) == {0: "stopped", 1: "stopped"}


@pytest.mark.parametrize("family", FAMILIES)
async def test_a_machine_that_is_taken_back_is_a_lost_node(bench: Bench, cloud: Cloud) -> None:
    await offer(bench, cloud)
    await bench.place(nodes=2, provider="far")
    async with running(bench.launcher(**SETTINGS)):
        handle = await bench.handle()
        # Their machines are folders of this one, so what runs there is ended by hand.
        folder = bench.folder / "data" / "launches" / handle
        cloud.switch_off(read_hosts(folder)[1])
        cloud.preempt(f"it-{handle}-1")
        (lost,) = await bench.until(ev.NodeLost)
    assert (lost.node, lost.evidence) == ("p1a1-1", "process_gone")


@pytest.mark.parametrize("family", FAMILIES)
async def test_machines_of_a_launch_that_is_over_are_deleted_when_a_launcher_looks(bench: Bench, cloud: Cloud) -> None:
    await offer(bench, cloud)
    cloud.refuse_to_create("ERROR: 503 Service Unavailable")
    await bench.place(provider="far")
    async with running(bench.launcher(**SETTINGS)):
        await bench.until(ev.LaunchFailed)
    (folder,) = [path.parent for path in (bench.folder / "data" / "launches").glob("*/launch.json")]
    # The call to create it arrived after all, after whoever made it was killed.
    cloud.refuse()
    engine_of(cloud, nodes=1, name=folder.name).provision(str(folder))
    engine_of(cloud, nodes=1, name="of-another-launcher").provision(str(bench.folder / "other"))
    await bench.place("p2a1", provider="far")
    async with running(bench.launcher(orphans_every_s=0.1, **SETTINGS)):
        handle = await bench.handle()
        await eventually(lambda: f"it-{folder.name}-0" not in cloud.live())
        assert sorted(cloud.live()) == sorted(["it-of-another-launcher-0", f"it-{handle}-0"])


@pytest.mark.parametrize("family", ["aws"])
def test_somebody_who_is_not_logged_in_is_told_so_by_the_real_command(
    cloud: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(EngineError) as caught:
        engine_of(cloud).provision(str(tmp_path / "launch"))
    assert classify(str(caught.value), operation="create") == "auth"


@pytest.mark.parametrize("family", ["aws"])
def test_what_the_real_command_says_of_a_wrong_parameter_is_kept(cloud: Cloud, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"InvalidSubnetID\.NotFound"):
        engine_of(cloud, nodes=1, subnet_id="subnet-00000000").provision(str(tmp_path / "launch"))
    with pytest.raises(EngineError, match="key_name"):
        engine_of(cloud, key_name="").provision(str(tmp_path / "launch"))


@pytest.mark.parametrize("family", ["gcp"])
def test_the_zone_is_where_the_provider_says(cloud: Cloud, tmp_path: Path) -> None:
    engine_of(cloud, nodes=1).provision(str(tmp_path / "launch"))
    (call,) = [line for line in cloud.calls().splitlines() if "instances create" in line]
    assert "--zone us-central1-a" in call
    assert "--provisioning-model SPOT" in call


@pytest.mark.parametrize("family", FAMILIES)
def test_a_command_that_is_not_installed_is_said(cloud: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EngineError, match="command not found"):
        engine_of(cloud).provision(str(tmp_path / "launch"))


@pytest.mark.parametrize("name", ["sky", "spotty", "sky/gcp"])
async def test_an_engine_that_iroh_tinker_names_and_does_not_have_is_refused_in_words(
    tmp_path: Path, name: str
) -> None:
    bench = Bench(tmp_path, MemoryLog(SystemClock()))
    await bench.provider("far", name)
    await bench.submit()
    await bench.place(provider="far")
    async with running(bench.launcher()):
        (failed,) = await bench.until(ev.LaunchFailed)
    assert failed.failure == "invalid"
    assert failed.text.startswith(f"the engine {name.split('/')[0]} is not supported")
    assert "not cleaned up" not in failed.text


async def test_an_engine_of_somebody_elses_is_told_each_nodes_own_folder(tmp_path: Path) -> None:
    bench = Bench(tmp_path, MemoryLog(SystemClock()))
    agent = (sys.executable, "-S", "-c", "import os; open(os.environ['ELASTICGRID_NODE_DIR'].replace('/', '_'), 'w')")
    await bench.provider("far", "module=provider_engines:Plain")
    await bench.submit()
    await bench.place(nodes=2, provider="far")
    async with running(bench.launcher(agent_command=agent)):
        handle = await bench.handle()
        wanted = {f"_tmp_elasticgrid_{handle}_{rank}" for rank in (0, 1)}
        await eventually(lambda: {path.name for path in tmp_path.glob("_tmp_elasticgrid_*")} == wanted)


@pytest.mark.parametrize("engine", ["module=no_such_module:Engine", "module=json:loads"])
async def test_an_engine_that_cannot_be_loaded_says_why(tmp_path: Path, engine: str) -> None:
    bench = Bench(tmp_path, MemoryLog(SystemClock()))
    await bench.provider("far", engine)
    await bench.submit()
    await bench.place(provider="far")
    async with running(bench.launcher()):
        (failed,) = await bench.until(ev.LaunchFailed)
    assert engine.removeprefix("module=").split(":")[0] in failed.text


@pytest.mark.parametrize("family", FAMILIES)
def test_the_recorded_texts_are_of_every_class_that_a_creation_can_meet(family: str) -> None:
    found = {text["failure"] for text in clouds.recorded(family)}
    assert found == {"stockout", "quota_used", "quota_zero", "auth", "rate_limited", "invalid", "transient"}
