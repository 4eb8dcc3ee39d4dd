"""`plan`, `spec`, `simulate`: what would be decided, with no server and nothing running."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from elasticgrid.cli.failures import OK
from elasticgrid.cli.options import Json, Output, chosen
from elasticgrid.cli.output import Format, counted, print_data, print_table, say
from elasticgrid.core.errors import ElasticGridError

if TYPE_CHECKING:
    from elasticgrid.cli.planning import Plan
    from elasticgrid.cli.simulation import Simulated

GROUP = "Try things out"
DEFAULT_NODES: Final = 8

Nodes = Annotated[int, typer.Option("--nodes", help="How many nodes.", metavar="N")]
Providers = Annotated[
    Path | None,
    typer.Option(
        "--providers",
        metavar="FILE",
        help="A grid file, or a JSON list of providers; an example grid when none is named.",
    ),
]


class Prefer(StrEnum):
    """What a placement prefers."""

    COST = "cost"
    BALANCE = "balance"


def register(app: typer.Typer) -> None:
    """Add the verbs."""
    app.command("plan", rich_help_panel=GROUP)(plan)
    app.command("spec", rich_help_panel=GROUP)(spec)
    app.command("simulate", rich_help_panel=GROUP)(simulate)


def plan(
    nodes: Nodes,
    providers: Providers = None,
    max_spot_fraction: Annotated[
        float, typer.Option("--max-spot-fraction", help="Share of the nodes that may be spot.", metavar="SHARE")
    ] = 1.0,
    prefer: Annotated[Prefer, typer.Option(help="The cheapest first, or an even spread.")] = Prefer.COST,
    output: Output = Format.TEXT,
    json: Json = False,
) -> int:
    """Place nodes over a grid and say what they would cost; nothing is launched.

    Example: elasticgrid plan --nodes 12 --max-spot-fraction 0.5 --json
    """
    from elasticgrid.cli.planning import make_plan, read_providers

    wanted = chosen(output, json)
    with _errors_as_data(wanted):
        grid = read_providers(providers)
        planned = make_plan(nodes, grid, max_spot_fraction=max_spot_fraction, prefer=prefer.value)
    if wanted is not Format.TEXT:
        print_data(planned, wanted)
        return OK
    _print_plan(planned)
    if providers is None:
        say("this is an example grid; name yours with --providers")
    say(f"next: elasticgrid spec --nodes {nodes}" + (f" --providers {providers}" if providers is not None else ""))
    return OK


def _print_plan(planned: Plan) -> None:
    print_table(
        ("!provider", "#nodes", "market", "#price/h", "infra"),
        (
            (
                line.provider,
                line.nodes,
                "spot" if line.spot else "on demand",
                f"${line.cost_per_node_hour:,.4f}",
                line.infra_ref,
            )
            for line in planned.assignments
        ),
    )
    print_table(
        ("what", "~value"),
        (
            ("nodes", planned.total_nodes),
            ("cost", f"${planned.cost_per_hour:,.2f} an hour"),
            ("spot share", f"{planned.spot_fraction:.0%}"),
        ),
        title="\ntogether",
    )
    if planned.policy_broken:
        say(f"against the policy: {planned.policy_broken}")


def spec(
    nodes: Nodes,
    providers: Providers = None,
    name: Annotated[str, typer.Option("--name", help="Of the launch.", metavar="NAME")] = "grid-job",
    run: Annotated[str, typer.Option("--run", help="The command.", metavar="COMMAND")] = "python train.py",
    output: Output = Format.TEXT,
    json: Json = False,
) -> int:
    """Print the iroh-tinker launch specification of a placement, as JSON unless asked otherwise.

    Example: elasticgrid spec --nodes 4 --run "python train.py" -o yaml
    """
    from elasticgrid.cli.planning import launch_spec, make_plan, read_providers

    wanted = Format.JSON if chosen(output, json) is Format.TEXT else chosen(output, json)
    with _errors_as_data(chosen(output, json)):
        document = launch_spec(make_plan(nodes, read_providers(providers)), name=name, run=run)
    print_data(document, wanted)
    return OK


def simulate(
    samples: Annotated[
        Path, typer.Option("--samples", metavar="FILE", help="JSON list of {step, duration_s, queue_s, nodes, tokens}.")
    ],
    nodes: Annotated[
        int | None,
        typer.Option("--nodes", help="The size now; that of the last step, or 8, when not given.", metavar="N", min=1),
    ] = None,
    min_nodes: Annotated[int, typer.Option("--min-nodes", help="The floor.", metavar="N", min=1)] = 1,
    max_nodes: Annotated[int, typer.Option("--max-nodes", help="The ceiling.", metavar="N", min=1)] = 1024,
    cooldown: Annotated[
        float, typer.Option("--cooldown", help="Seconds between two changes.", metavar="SECONDS", min=0, max=1e9)
    ] = 300.0,
    target_step: Annotated[
        float | None,
        typer.Option(
            "--target-step",
            help="A step of so many seconds is fast enough; without it no size is given back.",
            metavar="SECONDS",
            min=1e-6,
        ),
    ] = None,
    window: Annotated[int, typer.Option("--window", help="The last steps that count.", min=3, max=1000)] = 10,
    output: Output = Format.TEXT,
    json: Json = False,
) -> int:
    """Ask the scaling rules what they would decide after these steps, with every rule that was asked.

    Example: elasticgrid simulate --samples steps.json --nodes 8 --json
    """
    from elasticgrid.cli.simulation import read_steps, simulate_decision

    wanted = chosen(output, json)
    with _errors_as_data(wanted):
        steps = read_steps(samples)
        last = next((step.nodes for step in reversed(steps) if step.nodes is not None), None)
        simulated = simulate_decision(
            steps,
            nodes=nodes if nodes is not None else last or DEFAULT_NODES,
            min_nodes=min_nodes,
            max_nodes=max_nodes,
            cooldown_s=cooldown,
            target_step_s=target_step,
            window_steps=window,
        )
    if wanted is not Format.TEXT:
        print_data(simulated, wanted)
        return OK
    _print_simulated(simulated)
    if target_step is None and simulated.decision.rule == "balanced":
        say("what is fast enough was not said, so no nodes are given back: say it with --target-step")
    return OK


def _print_simulated(simulated: Simulated) -> None:
    decision, window = simulated.decision, simulated.window
    seen = f"{counted(window.samples, 'step')} of {window.mean_step_s:.3f} s, {window.queue_fraction:.0%} waiting"
    print_table(
        ("what", "~value"),
        (
            ("action", f"{decision.action} ({decision.current_nodes} -> {decision.target_nodes})"),
            ("reason", f"[{decision.rule}] {decision.reason}"),
            ("window", seen),
        ),
    )
    print_table(
        ("rule", "says", "~compared"),
        (
            (check.rule, "decides" if check.spoke else "no", ", ".join(f"{k}={v}" for k, v in check.numbers.items()))
            for check in decision.checks
        ),
        title="\nrules",
    )
    if window.dropped:
        steps = counted(window.dropped, "step")
        say(f"{steps} taken at another size, which say nothing of {counted(decision.current_nodes, 'node')}")


@contextmanager
def _errors_as_data(output: Format) -> Iterator[None]:
    """A script that reads JSON gets its errors as JSON, too."""
    try:
        yield
    except ElasticGridError as error:
        if output is Format.JSON:
            print_data({"error": error.what, "code": error.code, "where": error.where, "hint": error.hint}, output)
        raise
