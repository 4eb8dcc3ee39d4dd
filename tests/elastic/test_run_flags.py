"""What the flags of `elasticgrid run` mean, torchrun's ways of writing them included; and what is refused."""

from __future__ import annotations

import os
import re
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from elasticgrid.core.errors import InvalidInput
from elasticgrid.elastic import LaunchConfig, flags
from elasticgrid.elastic.config import checked
from elasticgrid.elastic.presence import Presence


@pytest.mark.parametrize(("text", "nodes"), [("1", (1, 1)), ("4", (4, 4)), ("1:4", (1, 4)), ("2:2", (2, 2))])
def test_a_number_of_nodes_is_one_number_or_two(text: str, nodes: tuple[int, int]) -> None:
    assert flags.node_range(text) == nodes


@pytest.mark.parametrize("text", ["", "x", "1:", ":2", "1:2:3", "-1", "1.5"])
def test_what_is_no_number_of_nodes_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="--nnodes"):
        flags.node_range(text)


def test_workers_are_counted_by_cpus_or_by_the_gpus_that_nvidia_smi_lists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    cpus = len(os.sched_getaffinity(0))
    assert [flags.worker_count(text) for text in ("3", "cpu", "auto")] == [3, cpus, cpus]
    with pytest.raises(InvalidInput, match="no GPU"):
        flags.worker_count("gpu")
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'GPU 0: A'\necho 'GPU 1: B'\necho 'GPU 2: C'\n")
    program.chmod(0o755)
    assert [flags.worker_count(text) for text in ("gpu", "auto", "cpu")] == [3, 3, cpus]
    program.write_text("#!/bin/sh\necho failed\nexit 9\n")
    assert flags.worker_count("auto") == cpus
    for text in ("0", "-1", "many"):
        with pytest.raises(InvalidInput, match="--nproc-per-node"):
            flags.worker_count(text)


def test_the_waits_may_be_named_as_torchrun_names_them() -> None:
    assert flags.rdzv_conf("timeout=30, last_call_timeout=2,") == {"join_timeout_s": 30, "last_call_s": 2}
    assert flags.rdzv_conf("join_timeout_s=0.5") == {"join_timeout_s": 0.5}
    with pytest.raises(InvalidInput, match="there is no 'colour'"):
        flags.rdzv_conf("colour=3")
    with pytest.raises(InvalidInput, match="has no number"):
        flags.rdzv_conf("timeout=soon")


@pytest.mark.parametrize(
    ("tee", "redirects", "only", "shown"),
    [
        ("", "", "", {0, 1, 2, 3}),
        ("", "3", "", set()),
        ("3", "3", "", {0, 1, 2, 3}),
        ("0", "", "", set()),
        ("", "", "1,3", {1, 3}),
        ("0:3,2:3", "", "", {0, 2}),
        ("", "1:3", "", {0, 2, 3}),
        ("3", "", "2", {2}),
    ],
)
def test_what_is_shown_follows_from_three_flags(tee: str, redirects: str, only: str, shown: set[int]) -> None:
    assert flags.shown_ranks(tee, redirects, only, 4) == shown


@pytest.mark.parametrize(("tee", "redirects", "only"), [("4:3", "", ""), ("", "9:0", ""), ("", "", "0,4")])
def test_a_worker_that_the_node_has_not_got_is_refused_wherever_it_is_named(
    tee: str, redirects: str, only: str
) -> None:
    with pytest.raises(InvalidInput, match=r"there is no worker \d on a node with 4 \(0 to 3\)"):
        flags.shown_ranks(tee, redirects, only, 4)


@pytest.mark.parametrize(("tee", "redirects", "only"), [("1", "", ""), ("", "x:3", ""), ("", "", "0,x")])
def test_output_and_errors_cannot_be_taken_apart(tee: str, redirects: str, only: str) -> None:
    with pytest.raises(InvalidInput):
        flags.shown_ranks(tee, redirects, only, 4)


def test_a_script_a_module_and_a_program_are_run_as_such() -> None:
    assert flags.worker_command("t.py", ["-x"], module=False, no_python=False) == [sys.executable, "-u", "t.py", "-x"]
    assert flags.worker_command("t", [], module=True, no_python=False)[1:] == ["-u", "-m", "t"]
    assert flags.worker_command("t", ["1"], module=False, no_python=True) == ["t", "1"]
    with pytest.raises(InvalidInput, match="--no-python"):
        flags.worker_command("t", [], module=True, no_python=True)


def test_an_endpoint_is_served_by_the_node_whose_address_it_is() -> None:
    assert flags.bus_url("", "node0:29400") == ("nats://node0:29400", True)
    assert flags.bus_url("nats://bus:4222", "node0:29400") == ("nats://bus:4222", False)
    with pytest.raises(InvalidInput, match="--rdzv-endpoint"):
        flags.bus_url("", "node0")
    assert flags.is_this_machine("127.0.0.1")
    assert not flags.is_this_machine("192.0.2.1")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert flags.listens("127.0.0.1", port)
    assert not flags.listens("127.0.0.1", port)


def test_one_node_may_have_any_free_port_and_several_need_one_that_they_can_find() -> None:
    assert flags.bus_url("", "localhost:0", is_alone=True) == ("", False)
    assert flags.bus_url("", "localhost:29400", is_alone=True) == ("nats://localhost:29400", True)
    for port in ("0", "65536"):
        with pytest.raises(InvalidInput, match="--rdzv-endpoint"):
            flags.bus_url("", f"localhost:{port}")


def test_a_node_that_nobody_else_has_to_find_needs_no_name_for_its_run() -> None:
    assert checked(LaunchConfig(bus_url="nats://127.0.0.1:29400", host_bus=True)).run_id.startswith("run-")


@pytest.mark.parametrize(
    ("fields", "flag"),
    [
        ({"min_nodes": 0}, "--nnodes"),
        ({"max_nodes": 2}, "--bus"),
        ({"max_nodes": 2, "bus_url": "nats://b:1"}, "--run-id"),
        ({"event_destination": "x"}, "--event-log-handler"),
        ({"last_call_s": -1}, "--last-call-s"),
        ({"grace_s": -1}, "--rdzv-conf grace_s"),
        ({"on_stuck": "shrug"}, "--on-stuck"),
        *(
            ({field: value}, f"--{field.replace('_', '-')}")
            for field, value in (("nproc_per_node", 0), ("max_restarts", -1), ("stuck_after_s", -1))
        ),
    ],
)
def test_a_field_that_is_refused_is_told_of_as_the_flag_that_gives_it_and_with_what_to_do(
    fields: dict[str, Any], flag: str
) -> None:
    with pytest.raises(InvalidInput) as refused:
        checked(LaunchConfig(**fields))
    told = flags.in_flags(refused.value)
    assert told.where == flag
    assert told.hint
    assert re.search("[a-z]_[a-z]", told.hint) is None


def test_what_is_refused_that_no_flag_gives_is_told_of_as_it_is() -> None:
    error = InvalidInput("damaged", where="run.json")
    assert flags.in_flags(error) is error


def test_several_workers_do_not_each_take_every_core_unless_they_are_told_to() -> None:
    assert flags.threads_variable({}, 2) == {"OMP_NUM_THREADS": "1"}
    assert flags.threads_variable({}, 1) == {}
    assert flags.threads_variable({"OMP_NUM_THREADS": "8"}, 2) == {}


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({"min_nodes": 0}, "min_nodes"),
        ({"min_nodes": 3, "max_nodes": 2, "bus_url": "nats://b:1", "run_id": "r"}, "max_nodes"),
        ({"max_nodes": 2}, "bus_url"),
        ({"max_nodes": 2, "bus_url": "nats://b:1"}, "run_id"),
        ({"run_id": "No Name"}, "run_id"),
        ({"host_bus": True, "run_id": "r"}, "bus_url"),
        ({"node_rank": 2, "min_nodes": 2, "max_nodes": 2, "master_addr": "a", "master_port": 1}, "node_rank"),
        ({"node_rank": 0, "min_nodes": 1, "max_nodes": 2, "master_addr": "a", "master_port": 1}, "min_nodes"),
        ({"node_rank": 0, "min_nodes": 2, "max_nodes": 2}, "master_addr"),
        ({"node_rank": 0, "min_nodes": 2, "max_nodes": 2, "master_addr": "a", "master_port": 0}, "master_port"),
        ({"on_stuck": "shrug"}, "on_stuck"),
        ({"orphan_timeout_s": -1}, "orphan_timeout_s"),
        ({"event_destination": "nowhere"}, "event_destination"),
        ({"start_method": "thread"}, "start_method"),
        ({"node_timeout_s": 1}, "node_timeout_s"),
        ({"join_timeout_s": float("nan")}, "join_timeout_s"),
    ],
)
def test_a_run_that_cannot_be_is_refused_by_the_field_that_is_wrong(fields: dict[str, Any], where: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        checked(LaunchConfig(**fields))
    assert refused.value.where == where


def test_a_node_is_lost_when_it_is_silent_for_too_long_while_it_could_have_been_heard() -> None:
    presence = Presence(5.0)
    for now_s in range(5):
        presence.heard("a", now_s)
        assert presence.silent(["a", "b"], now_s, bus_is_there=True) == {}
    presence.heard("a", 5.0)
    assert presence.silent(["a", "b"], 5.0, bus_is_there=True) == {"b": 5.0}


def test_silence_while_the_bus_was_away_or_nobody_looked_says_nothing() -> None:
    presence = Presence(5.0)
    presence.heard("a", 0.0)
    for now_s in range(1, 8):
        assert presence.silent(["a"], now_s, bus_is_there=now_s < 2) == {}
    assert presence.silent(["a"], 8.0, bus_is_there=True) == {}
    assert presence.silent(["a"], 30.0, bus_is_there=True) == {}, "this process was held up itself"
    for now_s in range(31, 35):
        assert presence.silent(["a"], now_s, bus_is_there=True) == {}
    assert presence.silent(["a"], 35.0, bus_is_there=True) == {"a": 5.0}
