"""Marks: what failures say about a place, how far it reaches, when it ends, and what ends it sooner.

A mark is folded from facts alone. Its scope is a string that every provider it covers derives for itself: a pool in a
zone, a quota, an account, the provider.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Final, TypeAlias

import msgspec

from elasticgrid.core.events import FailureClass
from elasticgrid.core.spec import ProviderSpec

MINUTE_MS: Final = 60_000
HOUR_MS: Final = 60 * MINUTE_MS

STOCKOUT_MS: Final = (15 * MINUTE_MS, 2 * HOUR_MS)
QUOTA_USED_MS: Final = 30 * MINUTE_MS
QUOTA_ZERO_MS: Final = 24 * HOUR_MS
RATE_LIMITED_MS: Final = (2_000, MINUTE_MS)
TRANSIENT_MS: Final = (30_000, 15 * MINUTE_MS)

#: How many event ids a mark keeps as its evidence: the latest.
EVIDENCE_KEPT: Final = 8
#: Engines of which one account serves every region, unless the provider's parameter `account` says otherwise.
_CLOUDS: Final = frozenset({"aws", "azure", "gcp"})


class Mark(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A reason not to ask a place for nodes.

    Attributes:
        failure: the class that set it.
        tier: with a stock-out, the smallest size that is closed; larger ones are closed too.
        since_ms: when the first failure was recorded.
        until_ms: when it ends by itself; None ends it only by a change of the configuration.
        failures: in a row; each doubles the time where the class says so.
        evidence: ids of the latest events it rests on.
        probe: the assignment that tries the place again; until it ends no other may.
    """

    failure: FailureClass
    tier: int = 0
    since_ms: int
    until_ms: int | None
    failures: int = 1
    evidence: tuple[str, ...] = ()
    probe: str = ""

    @property
    def half_open(self) -> bool:
        """Whether its end lets exactly one assignment through, and only its success clears the mark."""
        return self.failure in ("stockout", "boot_failed", "lost_young")


#: By scope; several only for stock-outs at several tiers, the smallest first.
Marks: TypeAlias = dict[str, tuple[Mark, ...]]


def pool_of(provider: ProviderSpec) -> str:
    """The quota pool a provider draws from; its own when it names none."""
    return provider.quota_pool or provider.name


def account_of(provider: ProviderSpec) -> str:
    """The account that requests for a provider are made with."""
    family = provider.engine.split("/", 1)[0]
    account = provider.params.get("account", "")
    if account:
        return f"{family}/{account}"
    return family if family in _CLOUDS else provider.name


def scope_of(provider: ProviderSpec, failure: FailureClass) -> str | None:
    """How far a failure of this class at this provider reaches; None when it says nothing of the provider."""
    match failure:
        case "stockout":
            return f"stockout:{pool_of(provider)}/{provider.region}/{provider.zone}"
        case "quota_used" | "quota_zero":
            return f"{failure}:{pool_of(provider)}/{provider.region}"
        case "rate_limited" | "auth":
            return f"{failure}:{account_of(provider)}"
        case "transient" | "infra_failed":
            return f"transient:{provider.name}"
        case "boot_failed" | "lost_young":
            return f"health:{provider.name}"
        case _:
            return None


_SCOPED: Final[tuple[FailureClass, ...]] = (
    "auth",
    "quota_zero",
    "quota_used",
    "stockout",
    "boot_failed",
    "transient",
    "rate_limited",
)
_ENDED_BY_GRANT: Final[tuple[FailureClass, ...]] = ("stockout", "quota_used", "rate_limited", "transient")
_ENDED_BY_CONFIGURATION: Final[tuple[FailureClass, ...]] = ("auth", "quota_zero")


def _doubled(bounds_ms: tuple[int, int], failures: int) -> int:
    first, last = bounds_ms
    return min(last, first << min(failures - 1, 32))


def _jitter(duration_ms: int, event_id: str) -> int:
    """`duration_ms` and up to half of it more, the same for the same event."""
    share = int.from_bytes(hashlib.sha256(event_id.encode()).digest()[:4], "big")
    return duration_ms + (duration_ms * share >> 33)


def _duration_ms(failure: FailureClass, failures: int, event_id: str) -> int | None:
    match failure:
        case "stockout":
            return _doubled(STOCKOUT_MS, failures)
        case "quota_used":
            return QUOTA_USED_MS
        case "quota_zero":
            return QUOTA_ZERO_MS
        case "rate_limited":
            return _jitter(_doubled(RATE_LIMITED_MS, failures), event_id)
        case "auth":
            return None
        case _:
            return _doubled(TRANSIENT_MS, failures)


def _put(marks: Marks, scope: str, mark: Mark) -> Marks:
    others = tuple(other for other in marks.get(scope, ()) if other.tier != mark.tier)
    return marks | {scope: tuple(sorted((*others, mark), key=lambda each: each.tier))}


def failed(
    marks: Marks,
    provider: ProviderSpec,
    failure: FailureClass,
    *,
    event_id: str,
    recorded_ms: int,
    assignment: str,
    until_ms: int | None = None,
) -> Marks:
    """The marks after a failure was recorded.

    Failures that arrive while the mark holds belong to the same trouble: they are evidence, but double nothing. A
    failure after its end, or of its probe, is the next in a row.

    Args:
        assignment: whose failure it is; ends that assignment's probe.
        until_ms: the end, where the caller knows it (the provider's health).
    """
    scope = scope_of(provider, failure)
    if scope is None:
        return marks
    tier = provider.tier if failure == "stockout" else 0
    old = next((mark for mark in marks.get(scope, ()) if mark.tier == tier), None)
    evidence: tuple[str, ...] = (event_id,)
    if old is None:
        failures, since_ms = 1, recorded_ms
    elif event_id in old.evidence:
        return marks
    else:
        failures, since_ms = old.failures, old.since_ms
        evidence = (*old.evidence, event_id)[-EVIDENCE_KEPT:]
        holds = old.until_ms is None or recorded_ms < old.until_ms
        if holds and old.probe != assignment and until_ms is None:
            return _put(marks, scope, msgspec.structs.replace(old, evidence=evidence))
        failures += 1
    if until_ms is None:
        duration_ms = _duration_ms(failure, failures, event_id)
        until_ms = None if duration_ms is None else recorded_ms + duration_ms
    mark = Mark(
        failure=failure,
        tier=tier,
        since_ms=since_ms,
        until_ms=until_ms,
        failures=failures,
        evidence=evidence,
        probe=old.probe if old is not None and old.probe != assignment else "",
    )
    return _put(marks, scope, mark)


def _without(marks: Marks, provider: ProviderSpec, failures: tuple[FailureClass, ...]) -> Marks:
    """Without the marks of these classes that cover the provider; the very same when there are none."""
    for failure in failures:
        scope = scope_of(provider, failure)
        if scope is None or scope not in marks:
            continue
        left = tuple(mark for mark in marks[scope] if failure == "stockout" and mark.tier > provider.tier)
        marks = {name: each for name, each in marks.items() if name != scope}
        if left:
            marks[scope] = left
    return marks


def granted(marks: Marks, provider: ProviderSpec) -> Marks:
    """The marks after the provider gave nodes: what it gave it had. Larger sizes of its pool stay closed."""
    return _without(marks, provider, _ENDED_BY_GRANT) if marks else marks


def booted(marks: Marks, provider: ProviderSpec) -> Marks:
    """The marks after a node of the provider came up: its block for bad health ends."""
    return _without(marks, provider, ("boot_failed",)) if marks else marks


def released(marks: Marks, provider: ProviderSpec) -> Marks:
    """The marks after a node of ours at the provider is gone: there is quota again."""
    return _without(marks, provider, ("quota_used",)) if marks else marks


def reconfigured(marks: Marks, provider: ProviderSpec) -> Marks:
    """The marks after somebody declared the provider (again)."""
    return _without(marks, provider, _ENDED_BY_CONFIGURATION) if marks else marks


def covering(marks: Mapping[str, tuple[Mark, ...]], provider: ProviderSpec) -> list[tuple[str, Mark]]:
    """(scope, mark) of every mark that covers the provider, ended or not."""
    found: list[tuple[str, Mark]] = []
    for failure in _SCOPED:
        scope = scope_of(provider, failure)
        if scope is not None:
            found += [(scope, mark) for mark in marks.get(scope, ()) if mark.tier <= provider.tier]
    return found


def _with_probe(marks: Marks, provider: ProviderSpec, before: str, after: str) -> Marks:
    for scope, mark in covering(marks, provider):
        if mark.half_open and mark.probe == before:
            marks = _put(marks, scope, msgspec.structs.replace(mark, probe=after))
    return marks


def probed(marks: Marks, provider: ProviderSpec, assignment: str) -> Marks:
    """The marks after an assignment was placed at the provider: it is the probe where none was under way."""
    return _with_probe(marks, provider, "", assignment) if marks else marks


def probe_over(marks: Marks, provider: ProviderSpec, assignment: str) -> Marks:
    """The marks after an assignment ended: another may be the probe."""
    return _with_probe(marks, provider, assignment, "") if marks else marks


def probing_scopes(marks: Mapping[str, tuple[Mark, ...]], provider: ProviderSpec, as_of_ms: int) -> tuple[str, ...]:
    """The scopes in which new nodes at this provider would be the one probe, all of them ended by time."""
    if not marks:
        return ()
    return tuple(
        scope
        for scope, mark in covering(marks, provider)
        if mark.half_open and mark.until_ms is not None and as_of_ms >= mark.until_ms
    )


def blocking(marks: Mapping[str, tuple[Mark, ...]], provider: ProviderSpec, as_of_ms: int) -> Mark | None:
    """The mark that closes the provider now, the one that lasts longest; None when it may be asked.

    A mark that has ended but whose probe is under way closes it too, with no end that time alone would bring.
    """
    if not marks:
        return None
    closing = [
        mark
        for _, mark in covering(marks, provider)
        if mark.until_ms is None or as_of_ms < mark.until_ms or (mark.half_open and mark.probe)
    ]
    return max(closing, key=lambda mark: (mark.until_ms is None, mark.until_ms or 0), default=None)
