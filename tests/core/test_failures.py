"""Failure classes: provider texts as providers write them, and worker exits."""

from __future__ import annotations

import pytest

from elasticgrid.core.events import FailureClass
from elasticgrid.core.failures import ExitEvidence, Operation, app_or_infra, classify

TEXTS: list[tuple[FailureClass, str]] = [
    (
        "stockout",
        "ERROR: ZONE_RESOURCE_POOL_EXHAUSTED: The zone 'us-a1' does not have enough resources. Try again later.",
    ),
    (
        "stockout",
        "An error occurred (InsufficientInstanceCapacity) when calling the RunInstances operation: We currently "
        "do not have sufficient p4d.24xlarge capacity in the Availability Zone you requested",
    ),
    ("stockout", 'There is no more capacity in the zone "us-central2-b"; you can try in another zone'),
    ("stockout", "RESOURCE_EXHAUSTED: 429 There is no more capacity in the zone"),
    ("stockout", "SkuNotAvailable: The requested size for resource is currently not available in location 'eastus'"),
    ("stockout", "AllocationFailed: Allocation failed. We do not have sufficient capacity for the requested VM size"),
    ("stockout", "ZonalAllocationFailed"),
    ("quota_used", "Quota 'PREEMPTIBLE_NVIDIA_A100_GPUS' exceeded.  Limit: 16.0 in region us-central1. QUOTA_EXCEEDED"),
    (
        "quota_used",
        "(MaxSpotInstanceCountExceeded) when calling the RunInstances operation: Max spot instance count exceeded",
    ),
    (
        "quota_used",
        "(VcpuLimitExceeded): You have requested more vCPU capacity than your current vCPU limit of 32 allows",
    ),
    (
        "quota_used",
        "Operation could not be completed as it results in exceeding approved Total Regional Cores quota. "
        "Current Limit: 10, Current Usage: 0",
    ),
    (
        "quota_zero",
        "Quota limit 'TPUV5sPreemptiblePodPerProjectPerZone' has been exceeded. Limit: 0 in zone us-east1-c.",
    ),
    ("quota_zero", "Quota 'GPUS_ALL_REGIONS' exceeded.  Limit: 0.0 globally."),
    (
        "quota_zero",
        "(VcpuLimitExceeded): You have requested more vCPU capacity than your current vCPU limit of 0 allows",
    ),
    (
        "rate_limited",
        "HttpError 429: Quota exceeded for quota metric 'Read requests' and limit 'Read requests per minute'",
    ),
    ("rate_limited", "(RequestLimitExceeded) when calling the DescribeInstances operation: Request limit exceeded."),
    ("rate_limited", "Throttling: Rate exceeded"),
    ("rate_limited", "403 rateLimitExceeded"),
    ("rate_limited", "HTTP 429"),
    ("rate_limited", "TooManyRequests"),
    ("transient", "503 Service Unavailable"),
    ("transient", "HTTP status 500"),
    ("transient", "requests.exceptions.ReadTimeout: Read timed out. (read timeout=60)"),
    ("transient", "ConnectionResetError: [Errno 104] Connection reset by peer"),
    ("transient", "ssh: connect to host 10.0.0.7 port 22: Connection refused"),
    ("transient", "Could not resolve host: compute.googleapis.com"),
    ("transient", "socket.gaierror: [Errno -2] Name or service not known"),
    ("transient", "INTERNAL: an internal error has occurred"),
    ("transient", "UNAVAILABLE: the service is currently unavailable"),
    ("transient", "something nobody has seen before"),
    ("transient", ""),
    ("auth", "PERMISSION_DENIED: Required 'compute.instances.create' permission"),
    ("auth", "(UnauthorizedOperation) You are not authorized to perform this operation."),
    ("auth", "ExpiredToken: The security token included in the request is expired"),
    ("auth", "Unable to locate credentials. You can configure credentials by running aws configure"),
    ("auth", "AuthFailure: AWS was not able to validate the provided access credentials"),
    ("auth", "root@10.0.0.7: Permission denied (publickey)."),
    ("auth", "HTTP 401"),
    ("invalid", "Invalid value for field 'resource.machineType': the machine type n1-huge-7 does not exist"),
    ("invalid", "InvalidParameterValue: Invalid value 'p9' for InstanceType"),
    ("invalid", "(InvalidAMIID.NotFound): The image id '[ami-1]' does not exist"),
    ("invalid", "Unsupported: Your requested instance type is not supported in your requested Availability Zone"),
    ("invalid", "INVALID_ARGUMENT: accelerator type v9 not found"),
    ("invalid", "disk of 70000 GB is larger than the provider allows"),
    ("preempted", "Instance was preempted."),
    ("preempted", "Server.SpotInstanceTermination: Spot instance termination"),
    ("boot_failed", "the agent did not join within 600 s"),
]


@pytest.mark.parametrize("operation", ["create", "operate"])
@pytest.mark.parametrize(("failure", "text"), TEXTS)
def test_a_provider_text_has_its_class_on_both_paths(failure: FailureClass, text: str, operation: Operation) -> None:
    assert classify(text, operation=operation) == failure


@pytest.mark.parametrize("beside", [text for failure, text in TEXTS if failure in ("transient", "stockout")])
def test_a_refused_credential_vetoes_a_retry_beside_any_other_text(beside: str) -> None:
    assert classify(f"{beside}\ncaused by: ExpiredToken: the token has expired", operation="create") == "auth"


def test_what_is_not_found_is_a_wrong_name_when_creating_and_a_vanished_machine_later() -> None:
    assert classify("HTTP 404: network 'traning' was not found", operation="create") == "invalid"
    assert classify("HTTP 404: instance 'n-3' was not found", operation="operate") == "infra_failed"


def test_a_very_long_text_is_classified_in_one_look() -> None:
    assert classify("quota limit " * 20_000, operation="create") == "transient"


NOTICE = ExitEvidence(preemption_notice=True)


@pytest.mark.parametrize(
    ("codes", "evidence", "failure"),
    [
        ((75,), ExitEvidence(), "infra_failed"),
        ((2,), ExitEvidence(), "app_failed"),
        ((1,), ExitEvidence(), "app_failed"),
        ((-9,), ExitEvidence(), "app_failed"),
        ((-11, -15, -15), ExitEvidence(), "app_failed"),
        ((143, 1, 137), NOTICE, "infra_failed"),
        ((143, 1, 137), ExitEvidence(), "app_failed"),
        ((-15, 75), ExitEvidence(), "infra_failed"),
        ((2, 75), ExitEvidence(), "app_failed"),
        ((-9,), ExitEvidence(node_gone=True), "infra_failed"),
        ((-9,), ExitEvidence(oom_killed=True), "app_failed"),
        ((-9,), ExitEvidence(oom_killed=True, node_gone=True), "app_failed"),
        (
            (1,),
            ExitEvidence(last_lines=("RuntimeError: CUDA error: uncorrectable ECC error encountered",)),
            "infra_failed",
        ),
        (
            (1,),
            ExitEvidence(last_lines=("NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.",)),
            "infra_failed",
        ),
        ((1,), ExitEvidence(last_lines=("torch.OutOfMemoryError: CUDA out of memory.",)), "app_failed"),
        ((1,), ExitEvidence(last_lines=("KeyError: 'loss'",)), "app_failed"),
        ((), ExitEvidence(), "app_failed"),
    ],
)
def test_an_exit_is_the_infrastructures_only_with_evidence(
    codes: tuple[int, ...], evidence: ExitEvidence, failure: FailureClass
) -> None:
    assert app_or_infra(codes, evidence) == failure
