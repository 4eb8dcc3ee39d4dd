"""Names and identifiers: what is allowed in one, and how derived ones are made."""

from __future__ import annotations

import hashlib
import re
from typing import Annotated

import msgspec

#: A tenant, job, provider or node: one subject token and one folder name.
NAME_PATTERN = r"^[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?$"
Name = Annotated[str, msgspec.Meta(pattern=NAME_PATTERN, description="lower-case letters, digits, - and _; at most 63")]

#: The tenant under which facts about the grid itself are recorded.
GRID_TENANT = "_grid"
#: The job token of facts about the fleet.
FLEET = "fleet"
#: The job token of facts about who may do what, and how much of it: tenants, their keys and their quotas.
ACCESS = "access"

_NAME = re.compile(NAME_PATTERN)
#: Engines cut the names of machines to 40 characters; the node's index behind the launch's name must survive that.
_LAUNCH_LENGTH = 33
_LAUNCH_DIGEST_LENGTH = 8


def is_name(text: str) -> bool:
    """Whether `text` may name a tenant, job, provider or node."""
    return _NAME.match(text) is not None


def is_record(tenant: str) -> bool:
    """Whether a tenant's jobs are only kept for people to look at: nobody decides about them or launches anything."""
    return tenant.startswith("_")


def derived_id(time_ms: int, *parts: object) -> str:
    """A time-ordered identifier of 32 hex digits that is the same whenever it is derived again.

    The first 12 digits are `time_ms` (Unix milliseconds), the rest a SHA-256 of `time_ms` and `parts`; two calls with
    equal arguments therefore name the same event, and a second try of an append is recognised as the first.
    """
    digest = hashlib.sha256("\x1f".join([str(time_ms), *map(str, parts)]).encode()).hexdigest()
    return f"{time_ms:012x}{digest[:20]}"


def content_digest(value: object) -> str:
    """The first 16 hex digits of the SHA-256 of `value`'s canonical JSON; equal values have equal digests."""
    return hashlib.sha256(msgspec.json.encode(value, order="sorted")).hexdigest()[:16]


def submission_folder(tenant: str, job: str, submitted_id: str) -> str:
    """The folder of one submission: of no other job, and of no earlier one of the same name.

    Args:
        submitted_id: of the event that the job began with.
    """
    return f"{tenant}-{job}-{submitted_id[-8:]}"


def run_folder(run: str, first_decision_id: str) -> str:
    """The folder of one run without a grid: of no other run, and of no earlier one of the same name.

    Args:
        first_decision_id: of the event that the first decision about the run was recorded with; all its nodes read it.
    """
    return f"{run}-{first_decision_id[-12:]}"


def launch_folder(tenant: str, job: str, submitted_id: str, attempt: str) -> str:
    """The name of a launch and of its folder: a hint for people, and a digest that makes it unique.

    It differs between two submissions of one job name, so nothing an older one left behind is taken for its own.
    Arguments as `submission_folder`, and the attempt's id.
    """
    whole = "\x1f".join((tenant, job, submitted_id, attempt))
    tail = f"-{attempt[-12:]}-{hashlib.sha256(whole.encode()).hexdigest()[:_LAUNCH_DIGEST_LENGTH]}"
    text = f"{tenant}-{job}"[: _LAUNCH_LENGTH - len(tail)] + tail
    return re.sub(r"[^a-z0-9-]", "-", text.lower()).lstrip("-")
