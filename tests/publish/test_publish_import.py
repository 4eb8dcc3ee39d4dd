"""What importing the package costs."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import sys, threading, time
began = time.perf_counter()
import elasticgrid
took_s = time.perf_counter() - began
assert took_s < 1.0, took_s
assert threading.active_count() == 1
{then}
loaded = {{name.split(".")[0] for name in sys.modules}}
assert not loaded & {{{forbidden}}}, loaded & {{{forbidden}}}
"""
SERVER_PACKAGES = (
    "'aiosqlite', 'httpx', 'iroh_tinker', 'litestar', 'rich', 'stamina', 'structlog', 'typer', 'uvicorn', 'yaml'"
)


def run(then: str, forbidden: str) -> None:
    script = SCRIPT.format(then=then, forbidden=forbidden)
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr


def test_importing_elasticgrid_loads_no_bus_client_and_no_server_and_starts_nothing() -> None:
    run("", f"'nats', 'msgspec', {SERVER_PACKAGES}")


def test_a_hook_outside_the_grid_loads_no_bus_client_and_starts_nothing() -> None:
    run(
        "pub = elasticgrid.publisher({}); pub.step().__enter__(); assert threading.active_count() == 1",
        f"'nats', {SERVER_PACKAGES}",
    )


def test_a_hook_with_a_bus_loads_no_server_package() -> None:
    run(
        "import elasticgrid.publish.bus_link",
        SERVER_PACKAGES,
    )


def test_the_version_is_that_of_the_installed_package() -> None:
    from importlib.metadata import version

    import elasticgrid

    assert elasticgrid.__version__ == version("elasticgrid")
    assert {"publisher", "Publisher", "Step", "PublisherStats"} <= set(dir(elasticgrid))
