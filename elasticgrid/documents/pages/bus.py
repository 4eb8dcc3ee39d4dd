"""The page of the bus: subjects, streams, and who may write what."""

from __future__ import annotations

import json
from typing import Any

from elasticgrid.bus import accounts, subjects
from elasticgrid.bus.streams import events_config, samples_config
from elasticgrid.documents.pages.markdown import code, page, summary, table


def bus_page() -> str:
    """Subjects, streams and roles."""
    made = (
        (subjects.event_subject, subjects.event_subject("TENANT", "JOB", "decision.WHAT")),
        (subjects.sample_subject, subjects.sample_subject("TENANT", "JOB", 0).removesuffix("0") + "RANK"),
        (subjects.heartbeat_subject, subjects.heartbeat_subject("TENANT", "JOB", "NODE")),
        (subjects.round_subject, subjects.round_subject("TENANT", "JOB", "NODE")),
        (subjects.live_filter, subjects.live_filter("TENANT", "JOB", "decision")),
        (subjects.read_subject, subjects.read_subject("TENANT", "JOB", "decision")),
        (subjects.renewal_subject, subjects.renewal_subject("TENANT", "JOB", "LAUNCH")),
        (subjects.watcher_subject, subjects.watcher_subject("TENANT")),
    )
    return page(
        "Subjects, streams and roles",
        "## Subjects",
        table(("subject, by an example", "is"), ((code(example), summary(make)) for make, example in made)),
        "The writer in an event's subject is the first word of its type: `job` (the gateway; also for `provider.*`), "
        "`decision`, `launch` or `node`.",
        "## Streams",
        "As the server is told them: times in nanoseconds, sizes in bytes, -1 for no limit.",
        *(_stream(config) for config in (events_config(), samples_config())),
        "## Accounts",
        "The streams are in the account of the grid, with the services. Each tenant has an account of its own without "
        "JetStream, which sees these subjects of the grid, with its own name in them, and no others:",
        ", ".join(code(subject) for subject in accounts.exported_subjects()),
        "## Users",
        "Of the grid's account; each receives answers under a prefix of its own:",
        *(_user(role, accounts.role_claims(role, f"_INBOX_{role}")) for role in accounts.ROLES),
        "Of a tenant's account, where INBOX is a prefix that nobody else can know:",
        _user("a launch", accounts.launch_claims("TENANT", "JOB", "LAUNCH", "INBOX")),
        _user("a dashboard", accounts.watcher_claims("TENANT", "INBOX", websocket=False)),
    )


def _stream(config: dict[str, Any]) -> str:
    rows = (
        (code(name), code(json.dumps(value))) for name, value in config.items() if name not in ("name", "description")
    )
    return f"### {config['name']}\n\n{config['description']}.\n\n{table(('setting', 'value'), rows)}"


def _user(name: str, claims: dict[str, Any]) -> str:
    rows = [
        (f"may {'' if way == 'allow' else 'not '}{verb}", ", ".join(map(code, claims[short][way])))
        for verb, short in (("publish", "pub"), ("subscribe", "sub"))
        for way in ("allow", "deny")
        if way in claims[short]
    ]
    if "resp" in claims:
        rows.append(("may answer", "each question once"))
    return f"### {name}\n\n{table(('', 'subjects'), rows)}"
