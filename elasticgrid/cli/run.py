"""`run`: the node agent with no grid around it, as torchrun is used."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
import typer.core

from elasticgrid.cli.failures import OK
from elasticgrid.cli.options import Level, LogLevel
from elasticgrid.cli.output import Format, print_data, say
from elasticgrid.cli.serve import GROUP
from elasticgrid.core.errors import ElasticGridError, InvalidInput, RendezvousGracefulExit, RunInterrupted

_MEETING = "Where nodes meet"
_WORKERS = "Workers"


class RunCommand(typer.core.TyperCommand):
    """Takes torchrun's way of writing options, `--nproc_per_node`, as well."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Options have hyphens up to the script; what comes after that is the script's."""
        takes_value = {
            name
            for each in self.params
            if isinstance(each, typer.core.TyperOption) and not each.is_flag
            for name in each.opts
        }
        written: list[str] = []
        rest = list(args)
        while rest and rest[0].startswith("-") and rest[0] != "--":
            name, separator, value = rest.pop(0).partition("=")
            name = name.replace("_", "-") if name.startswith("--") else name
            written.append(f"{name}{separator}{value}")
            if name in takes_value and not separator and rest:
                written.append(rest.pop(0))
        return super().parse_args(ctx, [*written, *rest])


def register(app: typer.Typer) -> None:
    """Add the verb."""
    context = {"allow_interspersed_args": False}
    app.command("run", cls=RunCommand, rich_help_panel=GROUP, context_settings=context)(run)


def run(
    script: Annotated[str, typer.Argument(help="The script, or with -m the module.", metavar="SCRIPT")],
    arguments: Annotated[list[str] | None, typer.Argument(help="Its arguments.", metavar="[ARGS]...")] = None,
    nnodes: Annotated[str, typer.Option("--nnodes", metavar="N|MIN:MAX", help="How many nodes.")] = "1",
    nproc_per_node: Annotated[
        str, typer.Option("--nproc-per-node", metavar="N|auto|cpu|gpu", help="Workers on each node.")
    ] = "1",
    module: Annotated[
        bool, typer.Option("-m", "--module", help="SCRIPT is a module.", rich_help_panel=_WORKERS)
    ] = False,
    no_python: Annotated[
        bool, typer.Option("--no-python", help="SCRIPT is a program of its own.", rich_help_panel=_WORKERS)
    ] = False,
    standalone: Annotated[
        bool, typer.Option("--standalone", help="One node; where nodes would meet is not looked at.")
    ] = False,
    max_restarts: Annotated[
        int, typer.Option("--max-restarts", help="Failures after which the workers start again; new members are free.")
    ] = 0,
    bus: Annotated[
        str,
        typer.Option("--bus", metavar="URL", help="A bus: nats://HOST:PORT.", rich_help_panel=_MEETING),
    ] = "",
    credentials: Annotated[
        Path | None,
        typer.Option(
            "--credentials",
            envvar="ELASTICGRID_CREDENTIALS",
            help="The file with the bus's credential; made by the node that serves the bus if it is not there.",
            rich_help_panel=_MEETING,
        ),
    ] = None,
    host_bus: Annotated[
        int | None,
        typer.Option("--host-bus", metavar="PORT", help="Serve the bus here.", rich_help_panel=_MEETING),
    ] = None,
    rdzv_endpoint: Annotated[
        str,
        typer.Option(
            "--rdzv-endpoint",
            metavar="HOST:PORT",
            help="A bus that the node with this address serves, if nothing is there yet.",
            rich_help_panel=_MEETING,
        ),
    ] = "",
    run_id: Annotated[
        str,
        typer.Option("--run-id", "--rdzv-id", metavar="NAME", help="The same on every node.", rich_help_panel=_MEETING),
    ] = "",
    rdzv_backend: Annotated[
        str,
        typer.Option(
            "--rdzv-backend",
            help="static: by node rank and master address. Anything else of torchrun's is the bus.",
            rich_help_panel=_MEETING,
        ),
    ] = "",
    rdzv_conf: Annotated[
        str,
        typer.Option(
            "--rdzv-conf",
            metavar="KEY=S,...",
            help="join_timeout_s, last_call_s, grace_s, node_timeout_s, bus_timeout_s, orphan_timeout_s, in seconds.",
            rich_help_panel=_MEETING,
        ),
    ] = "",
    last_call_s: Annotated[
        float | None,
        typer.Option(
            "--last-call-s", help="How long to wait for more nodes once MIN are there.", rich_help_panel=_MEETING
        ),
    ] = None,
    node_rank: Annotated[
        int | None, typer.Option("--node-rank", help="This node in a static world, from 0.", rich_help_panel=_MEETING)
    ] = None,
    master_addr: Annotated[
        str, typer.Option("--master-addr", help="Where rank 0 of a static world is.", rich_help_panel=_MEETING)
    ] = "",
    master_port: Annotated[int, typer.Option("--master-port", help="Its port.", rich_help_panel=_MEETING)] = 29500,
    local_addr: Annotated[
        str, typer.Option("--local-addr", help="Where the others reach this node.", rich_help_panel=_MEETING)
    ] = "",
    role: Annotated[
        str, typer.Option("--role", help="ROLE_NAME of the workers.", rich_help_panel=_WORKERS)
    ] = "default",
    log_dir: Annotated[
        Path | None,
        typer.Option("--log-dir", help="Where output is kept; else .elasticgrid/runs/NAME.", rich_help_panel=_WORKERS),
    ] = None,
    shared_dir: Annotated[
        Path | None,
        typer.Option(
            "--shared-dir", help="Seen by every node, for checkpoints; else below --log-dir.", rich_help_panel=_WORKERS
        ),
    ] = None,
    redirects: Annotated[
        str,
        typer.Option("--redirects", metavar="0|3|R:3,...", help="Keep output in files only.", rich_help_panel=_WORKERS),
    ] = "",
    tee: Annotated[
        str,
        typer.Option("--tee", metavar="0|3|R:3,...", help="Show output here as well.", rich_help_panel=_WORKERS),
    ] = "",
    local_ranks_filter: Annotated[
        str,
        typer.Option(
            "--local-ranks-filter", metavar="R,...", help="Show only these of the node.", rich_help_panel=_WORKERS
        ),
    ] = "",
    on_stuck: Annotated[
        str,
        typer.Option(
            "--on-stuck",
            metavar="tell|restart|fail",
            help="What follows when workers live but do not get on.",
            rich_help_panel=_WORKERS,
        ),
    ] = "tell",
    stuck_after_s: Annotated[
        float,
        typer.Option(
            "--stuck-after-s",
            help="Seconds without a step, and ten steps' time at least, after which they do not; 0: never.",
            rich_help_panel=_WORKERS,
        ),
    ] = 300.0,
    stuck_at_start_s: Annotated[
        float,
        typer.Option("--stuck-at-start-s", help="The same before a round's first step.", rich_help_panel=_WORKERS),
    ] = 1800.0,
    monitor_interval: Annotated[
        float, typer.Option("--monitor-interval", help="Seconds between two looks at what is to be decided.")
    ] = 0.1,
    event_log_handler: Annotated[
        str, typer.Option("--event-log-handler", help="Where events of the run go: null, console, logging or bus.")
    ] = "null",
    json: Annotated[bool, typer.Option("--json", help="Print the result as JSON; output stays in the files.")] = False,
    log_level: LogLevel = Level.WARNING,
) -> int:
    """Run workers on this node, alone or with the other nodes of the same run, with no grid around it.

    Options come before SCRIPT; what comes after it is the script's. Several nodes meet at a bus (--bus, --host-bus,
    --rdzv-endpoint), where nodes may come and go between MIN and MAX, or by --node-rank and --master-addr, fixed.

    Example: elasticgrid run --nproc-per-node 2 train.py --steps 100
    """
    from elasticgrid.elastic import flags
    from elasticgrid.elastic.config import LaunchConfig, checked
    from elasticgrid.elastic.launch import launch
    from elasticgrid.elastic.run_outcome import failure_of
    from elasticgrid.logs import configure_logging

    configure_logging(level=log_level)
    flags.port(master_port, "--master-port")
    least, most = (1, 1) if standalone else flags.node_range(nnodes)
    workers = flags.worker_count(nproc_per_node)
    conf = flags.rdzv_conf(rdzv_conf)
    if last_call_s is not None:
        conf["last_call_s"] = last_call_s
    url, hosts = "", False
    is_static = node_rank is not None or (rdzv_backend == "static" and not standalone)
    if is_static and not standalone:
        node_rank, master_addr = node_rank or 0, master_addr or _host_of(rdzv_endpoint)
    elif not standalone:
        url, hosts = _meeting_place(bus, host_bus, rdzv_endpoint, is_alone=most == 1)
    shown = flags.shown_ranks(tee, redirects, local_ranks_filter, workers)
    config = LaunchConfig(
        min_nodes=least,
        max_nodes=most,
        nproc_per_node=workers,
        run_id=run_id,
        bus_url=url,
        credentials=str(credentials) if credentials is not None and url else "",
        host_bus=hosts,
        node_rank=None if standalone else node_rank,
        master_addr=master_addr,
        master_port=master_port,
        local_addr=local_addr,
        role=role,
        max_restarts=max_restarts,
        monitor_interval_s=monitor_interval,
        log_dir=log_dir,
        shared_dir=shared_dir,
        tee=bool(shown) and (not json or bool(tee)),
        tee_local_ranks=shown,
        event_destination=event_log_handler,
        on_stuck=on_stuck,  # type: ignore[arg-type] # what it may be is checked below
        stuck_after_s=stuck_after_s,
        stuck_at_start_s=stuck_at_start_s,
    )
    try:
        config = checked(msgspec.structs.replace(config, **conf))
    except InvalidInput as error:
        raise flags.in_flags(error) from None
    command = flags.worker_command(script, arguments or [], module=module, no_python=no_python)
    os.environ.update(flags.threads_variable(os.environ, workers))
    try:
        result, _ = launch(config, command)
    except RendezvousGracefulExit as end:
        say(str(end))
        return OK
    except RunInterrupted as end:
        if json:
            print_data(failure_of(config.run_id, end), Format.JSON)
        say(f"error: {end}")
        return end.exit_code
    except KeyboardInterrupt as end:
        if json and isinstance(end.__cause__, RunInterrupted):
            print_data(failure_of(config.run_id, end.__cause__), Format.JSON)
        raise
    except InvalidInput as error:
        raise flags.in_flags(error) from None
    except ElasticGridError as error:
        if json:
            print_data(failure_of(config.run_id, error), Format.JSON)
        raise
    if json:
        print_data(result, Format.JSON)
    else:
        what = f"{result.nodes} node{'s' * (result.nodes != 1)} with {workers} worker{'s' * (workers != 1)} each"
        rounds = f"{result.rounds} round{'s' * (result.rounds != 1)}"
        say(f"{result.outcome}: {result.run_id}, {what}, {rounds}, {result.restarts} failed; output: {result.log_dir}")
    return OK


def _meeting_place(bus: str, host_bus: int | None, rdzv_endpoint: str, *, is_alone: bool) -> tuple[str, bool]:
    """Where the nodes meet, and whether this node serves it."""
    from elasticgrid.elastic import flags
    from elasticgrid.elastic.run_bus import host_and_port

    url, may_serve = flags.bus_url(bus, rdzv_endpoint, is_alone=is_alone)
    if host_bus is not None:
        if url:
            raise InvalidInput(
                "the bus is served here or is elsewhere", where="--host-bus", hint="the other nodes are given --bus"
            )
        return f"nats://0.0.0.0:{flags.port(host_bus, '--host-bus')}", True
    if not may_serve:
        return url, False
    host, port = host_and_port(url)
    return url, flags.is_this_machine(host) and not flags.listens(host, port)


def _host_of(endpoint: str) -> str:
    return endpoint.rpartition(":")[0]
