"""What people configure: a job, its scaling and placement policies, and the providers of a grid.

These are the values as events carry them: times in integer milliseconds, durations of single steps in integer
microseconds, money in integer micro-dollars, fractions in integer parts per million (`_ppm`, so 20 % is exactly
200,000). The files people write use plain units; `elasticgrid.config` translates.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from elasticgrid.core.names import Name

PPM = 1_000_000
#: Behind the name of a secret's variable: the variable with the path of its file.
SECRET_FILE_ENDING = "_FILE"  # noqa: S105 - the end of a name
#: Workers are not called stuck before this, however short their steps are.
DEFAULT_STUCK_AFTER_MS = 300_000

PositiveInt = Annotated[int, msgspec.Meta(ge=1)]
NonNegativeInt = Annotated[int, msgspec.Meta(ge=0)]
Ratio = Annotated[int, msgspec.Meta(ge=0, le=PPM)]

Market = Literal["on_demand", "spot"]
Band = Literal["production", "interactive", "batch"]
OnStuck = Literal["tell", "restart", "fail"]


class ProviderSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A place that runs nodes: one (name, region, market, type) with one price.

    Attributes:
        name: unique in the grid; two regions or two markets of one cloud are two providers.
        engine: iroh-tinker engine reference (`local`, `ssh`, `gcp/REGION`, `module=pkg.mod:Class`).
        max_nodes: the most nodes it may hold at once.
        slice_nodes: nodes come in whole slices of this many.
        price_microdollars_per_hour: price of one node for one hour.
        quota_pool: providers with the same pool share marks about quota and capacity; empty means its own.
        tier: size rank within the pool; a stock-out at a tier closes that tier and every larger one in its zone.
    """

    name: Name
    engine: str = "local"
    region: str = ""
    zone: str = ""
    market: Market = "on_demand"
    accelerator: str = ""
    max_nodes: NonNegativeInt
    slice_nodes: PositiveInt = 1
    price_microdollars_per_hour: NonNegativeInt = 0
    quota_pool: str = ""
    tier: NonNegativeInt = 0
    params: dict[str, str] = {}


class ScalingPolicy(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """How a job's size follows its signals. The defaults are those of the policy page.

    Attributes:
        min_samples: completed steps of the current round needed before signals count.
        min_evidence_ms: and this long between the first and the last of them.
        warmup_steps: first steps of each round that are left out.
        window_steps: the last completed steps that signals are taken over.
        target_queue_ppm: share of the step spent waiting for a worker from which the job is queue-bound.
        idle_queue_ppm: share up to which nobody waits.
        grow_factor_ppm, shrink_factor_ppm: size change of one decision.
        cooldown_up_ms, cooldown_down_ms: since the last applied change.
        reversal_ms: a change against the last one within this time needs twice the gain.
        max_changes_per_hour: voluntary changes applied in any hour.
        max_restart_ppm: share of an hour that may go into restarts.
        min_efficiency_ppm: relative gain in throughput over relative gain in nodes that growth must have paid.
        shrink_margin_ppm: share of the predicted capacity that a smaller size may be loaded to.
        in_flight_timeout_ms: a change under way is given up after this.
        default_restart_ms: what a change costs until it was measured.
        target_step_us, target_tokens_per_s: what "fast enough" means to this job; without one it never shrinks for
            being fast.
    """

    min_samples: PositiveInt = 3
    min_evidence_ms: NonNegativeInt = 30_000
    warmup_steps: NonNegativeInt = 1
    window_steps: Annotated[int, msgspec.Meta(ge=3, le=1_000)] = 32
    target_queue_ppm: Ratio = 200_000
    idle_queue_ppm: Ratio = 50_000
    grow_factor_ppm: Annotated[int, msgspec.Meta(gt=PPM)] = 2_000_000
    shrink_factor_ppm: Annotated[int, msgspec.Meta(gt=0, lt=PPM)] = 500_000
    cooldown_up_ms: NonNegativeInt = 120_000
    cooldown_down_ms: NonNegativeInt = 900_000
    reversal_ms: NonNegativeInt = 1_800_000
    max_changes_per_hour: PositiveInt = 6
    max_restart_ppm: Ratio = 100_000
    min_efficiency_ppm: NonNegativeInt = 250_000
    shrink_margin_ppm: Ratio = 850_000
    in_flight_timeout_ms: PositiveInt = 600_000
    default_restart_ms: NonNegativeInt = 120_000
    target_step_us: PositiveInt | None = None
    target_tokens_per_s: PositiveInt | None = None


class PlacementPolicy(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Where a job's nodes may run and what is preferred.

    Attributes:
        prefer: `cost` fills the cheapest first, `balance` spreads as evenly as capacity allows.
        spot: whether spot nodes are allowed, required or forbidden.
        max_spot_ppm: caps spot nodes at floor(share x nodes); it never forces spot.
        providers, regions, accelerators: allow lists; empty allows all.
        max_price_microdollars_per_hour: price ceiling of one node; none when absent.
    """

    prefer: Literal["cost", "balance"] = "cost"
    spot: Literal["allow", "require", "forbid"] = "allow"
    max_spot_ppm: Ratio = PPM
    providers: tuple[str, ...] = ()
    regions: tuple[str, ...] = ()
    accelerators: tuple[str, ...] = ()
    max_price_microdollars_per_hour: NonNegativeInt | None = None


class OutputSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """How each node keeps what its workers write.

    Attributes:
        max_bytes: of one worker's file before a new one begins; 0 for no limit.
        files: older files that are kept of each worker.
        tee: whether each line is repeated, behind its rank, in the output of the node's agent, which has no limit.
    """

    max_bytes: NonNegativeInt = 256 * 1024 * 1024
    files: Annotated[int, msgspec.Meta(ge=0, le=1_000)] = 3
    tee: bool = False


class JobSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A job as submitted: what runs, between which sizes, and under which policies.

    Attributes:
        command: argument list that each node's agent starts `nproc_per_node` times.
        workdir: folder the command runs in.
        min_nodes, max_nodes: bounds of the size, inclusive.
        initial_nodes: size of the first round; `min_nodes` when absent.
        quantum: sizes are multiples of this.
        grace_ms: how long workers get to stop at a step boundary and commit before they are terminated.
        max_restarts: failures of the application that are answered with a new round.
        max_infra_restarts: the same for failures of the infrastructure.
        on_stuck: what follows when workers live but take no step: nothing but the fact, a new round from the last
            checkpoint at the cost of an infrastructure restart, or the end of the job.
        stuck_after_ms: workers count as stuck after ten times as long as their steps usually take without one, and
            never before this; 0 never calls them so for that.
        deadline_ms: Unix milliseconds by which the job should be done.
        checkpoint_dir: folder that all nodes see; a folder of the grid's own when empty.
        setup: shell script that each machine of a launch runs once before its first workers.
        caches: keys of folders that the setup fills and that the machine keeps once it succeeded.
        bundle: whether nodes on the launcher's own machine work in a copy of the work directory, as others always do.
        file_mounts: paths in that copy, and the files or folders of the launcher's machine that are put there.
        secrets: variables of the workers, and the files of the launcher's machine whose text they are set to; nothing
            but these names and paths is in the log.
        output: how each node keeps what its workers write.
    """

    name: Name
    command: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]
    workdir: str = "."
    env: dict[str, str] = {}
    nproc_per_node: PositiveInt = 1
    min_nodes: PositiveInt = 1
    max_nodes: PositiveInt = 1
    initial_nodes: PositiveInt | None = None
    quantum: PositiveInt = 1
    band: Band = "batch"
    grace_ms: NonNegativeInt = 120_000
    join_timeout_ms: PositiveInt = 600_000
    max_restarts: NonNegativeInt = 0
    max_infra_restarts: NonNegativeInt = 20
    on_stuck: OnStuck = "tell"
    stuck_after_ms: NonNegativeInt = DEFAULT_STUCK_AFTER_MS
    deadline_ms: int | None = None
    checkpoint_dir: str = ""
    setup: str = ""
    caches: tuple[Name, ...] = ()
    bundle: bool = False
    file_mounts: dict[str, str] = {}
    secrets: dict[str, str] = {}
    output: OutputSpec = OutputSpec()
    scaling: ScalingPolicy = ScalingPolicy()
    placement: PlacementPolicy = PlacementPolicy()

    @property
    def start_nodes(self) -> int:
        """The size of the first round, in nodes."""
        return self.initial_nodes if self.initial_nodes is not None else self.min_nodes
