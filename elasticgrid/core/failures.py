"""What a failure is: provider texts and worker exits to one class each, by tables read from top to bottom.

The same table serves the answer of a create call and the error of a later operation, so the same text has the same
class on both paths. Raw texts are kept in the log; a better table can read them again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final, Literal

import msgspec

from elasticgrid.core.events import FailureClass

Operation = Literal["create", "operate"]

#: The exit code by which a program says that it is not to blame (sysexits' "temporary failure").
EXIT_TEMPORARY_FAILURE: Final = 75

_AUTH: Final = (
    r"permission[ _]?denied|not authori[sz]ed|unauthori[sz]ed(?:operation)?|access ?denied"
    r"|auth(?:entication|orization)? ?fail"
    r"|unauthenticated|invalidclienttokenid|signaturedoesnotmatch|invalid_grant|optinrequired"
    r"|expired ?(?:token|credential)|(?:token|credentials?)[^\n]{0,40} expired|unable to locate credentials"
    r"|could not (?:load|find|determine)[^\n]{0,30} credentials|invalid (?:api key|credentials)"
)
_STOCKOUT: Final = (
    r"zone_resource_pool_exhausted|insufficient[a-z]*(?:instance|host)capacity|insufficient capacity"
    r"|no more capacity|(?:not|n't)[^\n]{0,20} (?:enough|sufficient)[^\n]{0,40} (?:capacity|resources available)"
    r"|no (?:available |spot )?capacity|out of capacity|capacity[^\n]{0,30} (?:not|un)[ -]?available"
    r"|does not have enough resources|skunotavailable|(?:overconstrained)?(?:zonal)?allocation_?failed|stock ?out"
    r"|spotmaxpricetoolow"
)
_RATE: Final = (
    r"rate[ _-]?(?:limit|exceeded)|too many requests|toomanyrequests|requestlimitexceeded|throttl|slowdown"
    r"|(?:requests|queries|calls|operations)[^\n]{0,30} per (?:second|minute|hour|day)|per minute per"
)
_QUOTA: Final = (
    r"quota[^\n]{0,160}(?:exceed|exhaust)|(?:exceed|exhaust)[^\n]{0,80}quota|maxspotinstancecountexceeded|vcpulimitexceeded"
    r"|(?:instance|address|volume)limitexceeded|more vcpu capacity than your current"
)
_ZERO_LIMIT: Final = r"limit(?: is| of|[\"']?\s*[:=])\s*0(?:\.0+)?(?![\d.]*\d)"
_PREEMPTED: Final = r"preempted|preemption|spot ?(?:instance ?)?(?:interruption|termination)|reclaimed|\bevicted\b"
_BOOT: Final = r"(?:never|did not) join|boot(?:ing)? (?:timed out|timeout|failed)"
_INVALID: Final = (
    r"invalid[ _]?(?:argument|parameter|machine|instance|image|ami|value|disk|spec|request)|malformed|unsupported"
    r"|not supported|bad (?:machine|instance|image|spec|request)|disk[^\n]{0,60} (?:too large|larger than)"
    r"|(?:(?:machine|instance|accelerator)[ _]?type|\bimage\b)[^\n]{0,80} (?:does not exist|not found)"
)
_TRANSIENT: Final = (
    r"time[ds]? ?-?out|deadline[ _]exceeded|connection (?:reset|refused|aborted|closed|error)|broken pipe"
    r"|unexpected eof|name resolution|could not resolve|name or service not known|nodename nor servname"
    r"|no route to host|network is unreachable|\binternal(?:[ _](?:server )?error)?\b|\bunavailable\b"
    r"|service ?unavailable|bad gateway|backend ?error|command not found|try again"
    r"|(?:http|status|code|error)\D{0,12}5\d\d\b|\b5\d\d (?:internal|bad|service|gateway|server)"
)


def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(text, re.IGNORECASE)


#: (class, what the text must contain, what it must contain as well, on which operation); the first row that fits
#: decides. Words of refusal come first: no other word beside them makes a retry worth while. Bare numbers come last.
_TABLE: Final[tuple[tuple[FailureClass, re.Pattern[str], re.Pattern[str] | None, Operation | None], ...]] = (
    ("auth", _pattern(_AUTH), None, None),
    ("stockout", _pattern(_STOCKOUT), None, None),
    ("rate_limited", _pattern(_RATE), None, None),
    ("quota_zero", _pattern(_QUOTA), _pattern(_ZERO_LIMIT), None),
    ("quota_used", _pattern(_QUOTA), None, None),
    ("preempted", _pattern(_PREEMPTED), None, None),
    ("boot_failed", _pattern(_BOOT), None, None),
    ("invalid", _pattern(_INVALID), None, None),
    ("rate_limited", _pattern(r"resource[ _]?exhausted|(?:^|http|status|code|error)\D{0,12}\b429\b"), None, None),
    ("transient", _pattern(_TRANSIENT), None, None),
    ("auth", _pattern(r"(?:^|http|status|code|error)\D{0,12}\b40[13]\b|\bforbidden\b"), None, None),
    # What a create call does not find is a name in the job; what a later call does not find is the machine.
    ("invalid", _pattern(r"not[ _]?found|does not exist|\b40[04]\b"), None, "create"),
    ("infra_failed", _pattern(r"not[ _]?found|does not exist|\b404\b"), None, "operate"),
)


def classify(text: str, *, operation: Operation) -> FailureClass:
    """The class of what a provider said.

    Args:
        text: the provider's words, raw.
        operation: `create` for the answer to a create call and for the later error of that creation; `operate` for
            anything asked of machines that exist. It matters only to a bare "not found".

    A text that says nothing known is `transient`: tried again, ever more slowly.
    """
    for failure, pattern, also, only_on in _TABLE:
        if only_on is not None and only_on != operation:
            continue
        if pattern.search(text) is not None and (also is None or also.search(text) is not None):
            return failure
    return "transient"


class ExitEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """What was seen around the end of a node's workers.

    Attributes:
        preemption_notice: the provider gave notice within the disruption window.
        node_gone: the node itself disappeared.
        oom_killed: the machine's kernel or the container ended a worker for its use of memory.
        last_lines: the last output of each worker.
    """

    preemption_notice: bool = False
    node_gone: bool = False
    oom_killed: bool = False
    last_lines: tuple[str, ...] = ()


_OUT_OF_MEMORY: Final = _pattern(
    r"out of memory|outofmemory|oom[- ]?kill|cannot allocate memory|std::bad_alloc|memoryerror"
)
_DEVICE: Final = _pattern(
    r"uncorrectable (?:ecc|nvlink)|ecc_uncorrectable|\bxid\b|fallen off the bus|device[ _]lost|nvlink error"
    r"|no cuda-capable device|devices? is/are busy or unavailable|cuda driver[^\n]{0,30} (?:lost|shut)"
    r"|tpu[^\n]{0,40} (?:unhealthy|halted|hardware)|hardware (?:error|failure)|input/output error"
)


def _by_signal(code: int) -> bool:
    return code < 0 or 128 < code <= 128 + 64


NO_EVIDENCE: Final = ExitEvidence()


def is_device_error(texts: Iterable[str]) -> bool:
    """Whether what was said last tells of hardware that is broken: of this node, unless it is said of many."""
    return any(_DEVICE.search(text) is not None for text in texts)


def app_or_infra(
    exit_codes: Sequence[int], evidence: ExitEvidence = NO_EVIDENCE
) -> Literal["app_failed", "infra_failed"]:
    """Who is to blame for the end of a node's workers.

    Args:
        exit_codes: of the workers, the first failure first; minus the signal's number for a signal.
        evidence: what was seen around it.

    Memory used up is the application's, whatever else is seen. Then a notice, a vanished node, a device error or exit
    75 point at the infrastructure. Of the codes the first that is no signal counts: the others were ended because of
    it. A signal that nothing explains is the application's.
    """
    text = "\n".join(evidence.last_lines)
    if evidence.oom_killed or _OUT_OF_MEMORY.search(text) is not None:
        return "app_failed"
    if evidence.preemption_notice or evidence.node_gone or _DEVICE.search(text) is not None:
        return "infra_failed"
    first = next((code for code in exit_codes if code != 0 and not _by_signal(code)), 0)
    return "infra_failed" if first == EXIT_TEMPORARY_FAILURE else "app_failed"
