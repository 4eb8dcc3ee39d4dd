"""`tenants`, `keys`, `quota`, `jobs set-priority` and `providers interrupt`, on a real gateway."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cli_grid import GridThread, Run

from elasticgrid.cli.failures import FAILED, INVALID, NOT_FOUND, OK


@pytest.fixture
def research(run: Run, grid: GridThread, folder: Path) -> Path:
    """A tenant, and the file with a key of it."""
    assert run("tenants", "create", "research", "--note", "languages").code == OK
    path = folder / "research.key"
    assert run("keys", "create", "--tenant", "research", "--scope", "operate", "--out", path).code == OK
    return path


def test_a_tenant_is_created_and_the_next_step_is_said(run: Run, grid: GridThread) -> None:
    made = run("tenants", "create", "research", "--note", "languages", "--json")
    assert (made.code, made.json()["name"]) == (OK, "research")
    assert "keys create --tenant research" in made.err
    listed = run("tenants", "list", "-o", "json").json()
    assert [(each["name"], each["note"]) for each in listed] == [("default", ""), ("research", "languages")]
    assert "languages" in run("tenants", "list").out
    again = run("tenants", "create", "research")
    assert again.code == FAILED
    assert "already" in again.err
    assert run("tenants", "create", "_x").code == INVALID


def test_a_key_goes_to_standard_output_once_and_alone(run: Run, grid: GridThread) -> None:
    made = run("keys", "create", "--whole-grid", "--label", "the dashboard", "--ttl", "30d")
    assert made.code == OK
    (secret,) = made.out.splitlines()
    prefix = secret.split("_")[1]
    assert secret.startswith("eg_")
    assert secret not in made.err
    listed = run("keys", "list")
    assert prefix in listed.out
    assert "the dashboard" in listed.out
    assert secret not in listed.out + listed.err


def test_a_key_is_written_for_its_owner_alone_and_no_file_is_replaced(run: Run, research: Path) -> None:
    assert research.stat().st_mode & 0o777 == 0o600
    before = research.read_text()
    assert before.startswith("eg_")
    refused = run("keys", "create", "--tenant", "research", "--out", research)
    assert refused.code == INVALID
    assert research.read_text() == before
    assert len(run("keys", "list", "--json").json()) == 1


def test_no_file_is_left_when_no_key_was_made(run: Run, grid: GridThread, folder: Path) -> None:
    refused = run("keys", "create", "--tenant", "nobody", "--out", folder / "nobody.key")
    assert refused.code == NOT_FOUND
    assert not (folder / "nobody.key").exists()


def test_a_tenants_key_works_without_saying_whose_it_is(run: Run, research: Path, job_file: Path) -> None:
    made = run("submit", job_file, "--key-file", research, "--json").json()
    assert made["tenant"] == "research"
    for verb in (("jobs", "show"), ("jobs", "pause"), ("decisions", "list"), ("jobs", "logs"), ("jobs", "cancel")):
        assert run(*verb, made["id"], "--key-file", research).code == OK, verb
    assert run("jobs", "list", "--key-file", research, "--json").json()[0]["id"] == made["id"]
    assert run("jobs", "show", made["id"]).code == NOT_FOUND
    assert run("jobs", "show", made["id"], "--tenant", "research").code == OK
    foreign = run("jobs", "list", "--key-file", research, "--tenant", "default")
    assert foreign.code == NOT_FOUND
    refused = run("providers", "cordon", "small", "--key-file", research)
    assert refused.code == NOT_FOUND
    assert "whole grid" in refused.err


def test_what_a_tenant_may_not_see_is_not_called_missing(run: Run, research: Path, job_file: Path) -> None:
    for key in ((), ("--key-file", research), (), ("--key-file", research)):
        assert run("submit", job_file, *key).code == OK
    seen = run("replay", "timeline", "--key-file", research)
    assert seen.code == OK
    assert seen.out.count("research/") == 2
    assert "missing" not in seen.out + run("replay", "verify", "--key-file", research).err


def test_a_revoked_key_opens_nothing(run: Run, research: Path) -> None:
    prefix = research.read_text().split("_")[1]
    gone = run("keys", "revoke", prefix, "--reason", "left on a laptop")
    assert gone.code == OK
    assert "revoked" in gone.err
    refused = run("jobs", "list", "--key-file", research)
    assert refused.code == NOT_FOUND
    assert "revoked" in refused.err
    assert run("keys", "revoke", "00000000").code == NOT_FOUND
    assert run("keys", "revoke", "../x").code == NOT_FOUND


def test_a_quota_is_set_and_shown_with_what_is_left(run: Run, research: Path, job_file: Path) -> None:
    set_ = run("quota", "set", "research", "--jobs", "1", "--dollars", "2.5", "--period", "day", "--json").json()
    assert (set_["quota"]["jobs"], set_["quota"]["microdollars"]) == (1, 2_500_000)
    shown = run("quota", "show", "research").out
    assert "$2.50" in shown
    assert run("submit", job_file, "--key-file", research).code == OK
    refused = run("submit", job_file, "--key-file", research)
    assert refused.code == FAILED
    assert "uses 1 job of 1 job" in refused.err
    lines = run("quota", "show", "-o", "jsonl").out.splitlines()
    assert len(lines) == 2
    assert run("quota", "show", "nobody").code == NOT_FOUND
    assert run("quota", "set", "research", "--jobs", "2", "--period-hours", "0").code == OK
    assert run("quota", "set", "research", "--jobs", "-3").code == INVALID


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ((), "say --none"),
        (("--period", "day"), "say --none"),
        (("--none", "--jobs", "3"), "none are wanted"),
        (("--jobs", "3", "--period", "day", "--period-hours", "6"), "said twice"),
    ],
)
def test_a_quota_is_not_taken_away_by_leaving_something_out(run: Run, research: Path, flags: Any, says: str) -> None:
    assert run("quota", "set", "research", "--jobs", "7").code == OK
    refused = run("quota", "set", "research", *flags)
    assert refused.code == INVALID
    assert says in refused.err
    assert run("quota", "show", "research", "--json").json()["quota"]["jobs"] == 7
    gone = run("quota", "set", "research", "--none", "--json").json()
    assert all(line["limit"] is None for line in gone["lines"])


def test_a_tenant_without_any_job_is_not_told_to_wait_for_one(run: Run, research: Path, job_file: Path) -> None:
    assert run("quota", "set", "research", "--jobs", "0").code == OK
    refused = run("submit", job_file, "--key-file", research)
    assert "ask an admin for a larger quota" in refused.err
    assert "until a job is over" not in refused.err


def test_a_key_is_made_with_limits_of_its_own_and_listed_with_them(run: Run, research: Path) -> None:
    made = run("keys", "create", "--tenant", "research", "--rate", "5", "--burst", "9", "--json").json()
    assert (made["key"]["rate_per_s"], made["key"]["burst"]) == (5, 9)
    (line,) = [line for line in run("keys", "list").out.splitlines() if made["key"]["prefix"] in line]
    assert "5/s" in line
    assert run("keys", "create", "--tenant", "research", "--rate", "0").code == INVALID


@pytest.mark.parametrize(
    ("verb", "flag", "field"),
    [
        (("keys", "create", "--tenant", "research", "--ttl", "5000d"), "--ttl", "ttl_s"),
        (("keys", "create", "--tenant", "research", "--whole-grid"), "--tenant:", "whole_grid"),
        (("keys", "create"), "--whole-grid", "whole_grid"),
        (("quota", "set", "research", "--accelerator-hours", "-1"), "--accelerator-hours", "accelerator_hours"),
        (("quota", "set", "research", "--dollars", "-1"), "--dollars", "microdollars"),
        (("providers", "interrupt", "small", "--notice-s", "-1"), "--notice-s", "notice_s"),
        (("jobs", "list", "--phase", "bogus"), "--phase", " phase:"),
        (("submit", "job.yaml", "--idempotency-key", "x" * 300), "--idempotency-key", "Idempotency-Key"),
    ],
)
def test_what_the_gateway_refuses_is_named_as_the_command_line_names_it(
    run: Run, research: Path, job_file: Path, verb: tuple[str, ...], flag: str, field: str
) -> None:
    verb = tuple(str(job_file) if word == "job.yaml" else word for word in verb)
    refused = run(*verb)
    assert refused.code == INVALID, refused
    assert flag in refused.err
    assert field not in refused.err


@pytest.mark.parametrize("output", ["json", "jsonl", "yaml", "text"])
@pytest.mark.parametrize("verb", [("tenants", "list"), ("keys", "list"), ("quota", "show")])
def test_lists_come_in_every_format(run: Run, research: Path, verb: tuple[str, str], output: str) -> None:
    ended = run(*verb, "-o", output)
    assert ended.code == OK
    assert "research" in ended.out


def test_a_job_is_put_into_another_band(run: Run, grid: GridThread, job_file: Path) -> None:
    job = run("submit", job_file, "--json").json()["id"]
    assert run("jobs", "set-priority", job, "production", "--reason", "the paper is due").code == OK
    assert run("jobs", "show", job, "--json").json()["job"]["band"] == "production"
    assert run("jobs", "set-priority", job, "urgent").code == INVALID
    assert run("jobs", "set-priority", "nobody", "batch").code == NOT_FOUND


def test_a_providers_nodes_are_given_notice(run: Run, grid: GridThread) -> None:
    told = run("providers", "interrupt", "small", "--notice-s", "60", "--json")
    assert (told.code, told.json()["provider"], told.json()["jobs"]) == (OK, "small", [])
    assert "0 nodes of 0 jobs" in run("providers", "interrupt", "small").err
    assert run("providers", "interrupt", "nowhere").code == NOT_FOUND
    assert run("providers", "interrupt", "small", "--notice-s", "-1").code == INVALID
