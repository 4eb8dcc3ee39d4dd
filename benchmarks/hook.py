"""What the hook costs a training loop, beside a bare loop in the same run: `python -m benchmarks.hook [-o json]`.

A trainer process of its own is measured with the bus up, stalled (the server is stopped in its tracks, connections stay
open) and down. In each, short stretches of a bare loop and of the same loop with the hook take turns.

step_us         what a step costs more with the hook: median over the stretches, for each state of the bus
bare_loop_us    a step of the bare loop: the same work without the hook
blocked_calls   how often the training thread gave up the processor inside the hook, over all states. The interpreter is
                told to switch threads only where a call lets go of its lock, so that nothing else can be counted.
rss_mb          resident memory beyond a bare loop's process, with the buffer full: the largest of the three
exit_s          from the trainer's last line to the end of its process, bus stalled or down: the larger
fork_harmless   whether a fork in the middle left the parent's samples whole and the child's unsent
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time

STRETCHES = 200
STEPS = 500
BLOCK_STRETCHES = 40
STATES = ("up", "stalled", "down")
TRAINER = (sys.executable, "-m", "benchmarks.hook", "--trainer")


def work() -> int:
    """Stands for a training step: a few microseconds of the interpreter."""
    return sum(range(200))


def rss_mb() -> float:
    """Resident memory of this process, in MB (10^6 bytes)."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 1e6


def bare_stretch() -> float:
    """Seconds of `STEPS` steps of the bare loop."""
    began = time.perf_counter()
    for _ in range(STEPS):
        work()
    return time.perf_counter() - began


def train_bare() -> None:
    """A trainer without the hook: what its process takes."""
    bare_stretch()
    print(json.dumps({"rss_mb": rss_mb()}), flush=True)


def train() -> None:
    """A trainer with the hook. It says `ready` when its first sample is stored, and goes on when it reads a line."""
    import elasticgrid

    pub = elasticgrid.publisher()

    def stretch() -> float:
        began = time.perf_counter()
        for _ in range(STEPS):
            with pub.step(tokens=4_096) as step:
                work()
                step.loss = 2.5
            pub.should_stop()
        return time.perf_counter() - began

    with pub.step(tokens=1):
        pass
    if not pub.flush(10.0):
        raise SystemExit(f"the first sample was not stored: {pub.stats.problem}")
    print("ready", flush=True)
    sys.stdin.readline()

    forked_well = fork_once(pub)
    bare_s, hook_s = [], []
    for _ in range(STRETCHES):
        bare_s.append(bare_stretch())
        hook_s.append(stretch())
    sys.setswitchinterval(60.0)
    time.sleep(0.1)  # whoever waits for the interpreter now waits with the new interval
    blocked = 0
    for _ in range(BLOCK_STRETCHES):
        before = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
        stretch()
        blocked += resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw - before
        time.sleep(0.02)  # the hook's own thread has its turn here
    sys.setswitchinterval(0.005)
    stats = pub.stats
    counted = stats.published + stats.buffered + stats.dropped + stats.spooled
    whole = counted == pub.steps_completed == 1 + STEPS * (STRETCHES + BLOCK_STRETCHES)
    result = {
        "step_us": (statistics.median(hook_s) - statistics.median(bare_s)) / STEPS * 1e6,
        "bare_loop_us": statistics.median(bare_s) / STEPS * 1e6,
        "blocked_calls": blocked,
        "rss_mb": rss_mb(),
        "fork_harmless": forked_well and whole,
        "ended_at": time.time(),
    }
    print(json.dumps(result), flush=True)


def fork_once(pub: object) -> bool:
    """A child that takes steps with its parent's hook, as a careless data loader might; whether it ended well."""
    import elasticgrid

    assert isinstance(pub, elasticgrid.Publisher)
    child = os.fork()
    if child == 0:
        for _ in range(10):
            with pub.step(tokens=1):
                pass
        pub.close()
        os._exit(1 if pub.active or pub.stats.buffered else 0)
    return os.waitpid(child, 0)[1] == 0


async def measure(state: str) -> dict[str, float]:
    """A trainer and a server of its own, with the bus in this state from the trainer's second step on."""
    import asyncio
    import signal
    import tempfile
    from pathlib import Path

    from elasticgrid import environment
    from elasticgrid.testing import bus

    with tempfile.TemporaryDirectory() as folder:
        async with bus.embedded_server(Path(folder)) as server:
            async with bus.bus_client(server):
                pass  # it makes the streams
            address = await bus.launch_address(server, "bench", "hook")
            process = await asyncio.create_subprocess_exec(
                *TRAINER,
                "hook",
                env={
                    **os.environ,
                    environment.NATS_URL: address.url,
                    environment.CREDENTIALS: address.credentials,
                    environment.TENANT: "bench",
                    environment.JOB: "hook",
                },
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            stopped = None
            try:
                assert process.stdin is not None
                assert process.stdout is not None
                if await process.stdout.readline() != b"ready\n":
                    raise SystemExit("the trainer did not begin")
                if state == "stalled":
                    stopped = server.pid
                    os.kill(stopped, signal.SIGSTOP)
                elif state == "down":
                    await server.stop()
                process.stdin.write(b"go\n")
                result: dict[str, float] = json.loads(await process.stdout.readline())
                if await process.wait() != 0:
                    raise SystemExit(f"the trainer ended with {process.returncode}")
                return result | {"exit_s": time.time() - result["ended_at"]}
            finally:
                if process.returncode is None:
                    process.kill()
                    await process.wait()
                if stopped is not None:
                    os.kill(stopped, signal.SIGCONT)


def measure_all() -> dict[str, object]:
    """Every state of the bus in turn, beside a trainer without a hook."""
    import asyncio

    bare = subprocess.run([*TRAINER, "bare"], stdout=subprocess.PIPE, check=True)
    found = {state: asyncio.run(measure(state)) for state in STATES}
    return {
        "step_us": {state: round(found[state]["step_us"], 2) for state in STATES},
        "bare_loop_us": round(statistics.median(found[state]["bare_loop_us"] for state in STATES), 2),
        "blocked_calls": sum(int(found[state]["blocked_calls"]) for state in STATES),
        "rss_mb": round(max(found[state]["rss_mb"] for state in STATES) - json.loads(bare.stdout)["rss_mb"], 1),
        "exit_s": round(max(found["stalled"]["exit_s"], found["down"]["exit_s"]), 2),
        "fork_harmless": all(found[state]["fork_harmless"] for state in STATES),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="What the hook costs a training loop, beside a bare loop.")
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text")
    parser.add_argument("--trainer", choices=("bare", "hook"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.trainer == "bare":
        train_bare()
    elif options.trainer == "hook":
        train()
    elif options.output == "json":
        print(json.dumps(measure_all()))
    else:
        for name, value in measure_all().items():
            print(f"{name:14} {value}")


if __name__ == "__main__":
    main()
