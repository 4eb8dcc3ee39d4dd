"""The page of the bus: subjects, streams, and who may write what."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from elasticgrid.bus import server_config, subjects
from elasticgrid.bus.streams import events_config, samples_config
from elasticgrid.documents.pages.markdown import code, page, summary, table


def bus_page() -> str:
    """Subjects, streams and roles."""
    made = (
        (subjects.event_subject, subjects.event_subject("TENANT", "JOB", "decision.WHAT")),
        (subjects.sample_subject, subjects.sample_subject("TENANT", "JOB", 0).removesuffix("0") + "RANK"),
        (subjects.heartbeat_subject, subjects.heartbeat_subject("TENANT", "JOB", "NODE")),
        (subjects.round_subject, subjects.round_subject("TENANT", "JOB", "NODE")),
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
        "## Roles",
        "Every client has one of two roles. Each receives answers under a prefix of its own, and neither may delete or "
        "purge a stream.",
        *(_role(user) for user in _users()),
    )


def _stream(config: dict[str, Any]) -> str:
    rows = (
        (code(name), code(json.dumps(value))) for name, value in config.items() if name not in ("name", "description")
    )
    return f"### {config['name']}\n\n{config['description']}.\n\n{table(('setting', 'value'), rows)}"


def _users() -> list[dict[str, Any]]:
    text = server_config.render(folder=Path("/"), port=-1, passwords=dict.fromkeys(server_config.ROLES, ""))
    users: list[dict[str, Any]] = json.loads(text.split("authorization: ", 1)[1])["users"]
    return users


def _role(user: dict[str, Any]) -> str:
    rows = [
        (f"may {'' if way == 'allow' else 'not '}{verb}", ", ".join(map(code, rules[way])))
        for verb, rules in user["permissions"].items()
        if isinstance(rules, dict)
        for way in ("allow", "deny")
        if way in rules
    ]
    return f"### {user['user']}\n\n{table(('', 'subjects'), rows)}"
