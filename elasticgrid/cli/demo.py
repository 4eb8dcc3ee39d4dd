"""`demo`: the whole loop on this machine."""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from elasticgrid.cli.failures import FAILED, OK
from elasticgrid.cli.nats_binary import NatsServer, checked
from elasticgrid.cli.options import Json, Level, LogLevel, Output, chosen
from elasticgrid.cli.output import Format, counted, dollars, print_data, print_table, say, stderr
from elasticgrid.core.errors import InvalidInput

if TYPE_CHECKING:
    from elasticgrid.demo.report import DemoResult

GROUP = "Run a grid"


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("demo", rich_help_panel=GROUP)(demo)


def demo(
    json: Json = False,
    output: Output = Format.TEXT,
    data: Annotated[
        Path, typer.Option("--data", help="Where it is kept; each run has a folder of its own in it.")
    ] = Path(".elasticgrid/demo"),
    nats_server: NatsServer = None,
    example: Annotated[
        Path | None, typer.Option("--example", help="A folder with a job.yaml and a grid.yaml of your own to show.")
    ] = None,
    chaos: Annotated[
        int | None,
        typer.Option("--chaos", metavar="SEED", min=0, help="Kill every part of the grid meanwhile, as SEED says."),
    ] = None,
    log_level: LogLevel = Level.INFO,
) -> int:
    """Train a real elastic job under a changing load on this machine, then re-take every decision from the log.

    Takes about a minute. Exits with 0 only if the job grew and shrank, its loss fell, no step of the committed line ran
    twice and every decision came out the same again; with 1 if not, and with 130 after Ctrl-C, which ends the job and
    everything that was started. The bus is an embedded nats-server, or, without --nats-server, the one that
    ELASTICGRID_NATS_URL names.

    With --chaos each service is a process of its own, and decider, launcher, gateway, bus, an agent and a worker are
    killed at moments drawn from SEED and started again. It exits with 0 only if all of them were killed, the job was
    completed all the same, no step of the committed line ran twice, no process was left behind and every decision came
    out the same again; sizes and losses are not judged. The bus is always embedded.

    Example: elasticgrid demo --json
    """
    from elasticgrid.bus.connect import BusAddress
    from elasticgrid.demo.chaos_run import run_chaos
    from elasticgrid.demo.example import checked_example
    from elasticgrid.demo.run import run_demo
    from elasticgrid.logs import configure_logging
    from elasticgrid.runtime.node_bus import NodeBus
    from elasticgrid.runtime.signals import TERMINATED, run_until_signalled

    server = checked(nats_server)
    shown = checked_example(example)
    # Nothing that this run and what it starts write is for other users of the machine.
    os.umask(0o077)
    try:
        folder = _new_folder(data)
    except OSError as error:
        raise InvalidInput(f"no folder can be made in {data}: {error.strerror}", where="--data") from error
    results: list[DemoResult] = []
    with (folder / "services.log").open("w", encoding="utf-8") as log_file:
        configure_logging(level=log_level, stream=log_file)

        async def run() -> int:
            bus = BusAddress.from_environment(os.environ) if server is None else None
            if chaos is not None:
                results.append(await run_chaos(folder, stderr(), chaos, nats_server=server, example=shown))
                return OK
            results.append(
                await run_demo(
                    folder,
                    stderr(),
                    nats_server=server,
                    bus=bus,
                    node=NodeBus.from_environment(os.environ, bus) if bus is not None else None,
                    example=shown,
                )
            )
            return OK

        code = run_until_signalled(run(), terminated=TERMINATED)
    if not results:
        say(f"ended early; what it left is in {folder}")
        return code
    (result,) = results
    wanted = chosen(output, json)
    if wanted is Format.TEXT:
        print_result(result)
    else:
        print_data(result, wanted)
    for failure in result.failures:
        say(f"failed: {failure}")
    if result.failures:
        say(f"see: {folder / 'services.log'}")
        return FAILED
    say(f"next: elasticgrid replay timeline {result.archive}")
    return OK


def _new_folder(data: Path) -> Path:
    """A folder of this run's own, named by the time."""
    name = time.strftime("%Y%m%d-%H%M%S")
    for number in itertools.count(1):
        folder = data / (name if number == 1 else f"{name}-{number}")
        with contextlib.suppress(FileExistsError):
            folder.mkdir(parents=True, mode=0o700)
            break
    return folder


def print_result(result: DemoResult) -> None:
    """The result for people."""
    nodes = ", ".join(f"{count} on {name}" for name, count in result.nodes_by_provider.items())
    twice = "none ran twice" if not result.duplicate_steps else f"{result.duplicate_steps} ran twice"
    lost = "none was lost" if not result.lost_steps else f"{result.lost_steps} lost"
    loss = f"loss {result.loss_first:.2f} -> {result.loss_last:.2f}"
    print()
    print_table(
        ("the demonstration", "~"),
        (
            ("world", " -> ".join(map(str, result.worlds)) + " nodes"),
            (
                "training",
                f"{counted(result.steps, 'step')}, {twice}, {lost}; {loss}",
            ),
            ("samples", f"{result.samples_published} published, {result.samples_dropped} dropped"),
            ("nodes", f"{nodes}, in {counted(result.launches, 'launch')}"),
            ("cost", dollars(round(result.cost_usd * 1_000_000), places=4)),
            ("decisions", f"{result.decisions}; taken again from the log, {result.verified} came out the same"),
            *_chaos_rows(result),
            ("took", f"{result.duration_s:.0f} s"),
            ("archive", result.archive),
        ),
    )


def _chaos_rows(result: DemoResult) -> list[tuple[str, str]]:
    """What only a run under chaos has to tell."""
    from elasticgrid.demo.report import ChaosResult

    if not isinstance(result, ChaosResult):
        return []
    killed = ", ".join(f"{kill.what} at {kill.at_s:.0f} s" for kill in result.kills)
    return [("killed", killed or "nothing"), ("left behind", counted(result.orphans, "process"))]
