"""Whether the kernel ended processes of this node for their use of memory: a count that only grows."""

from __future__ import annotations

from pathlib import Path
from typing import Final

CGROUP_FILE: Final = Path("/proc/self/cgroup")
CGROUP_ROOT: Final = Path("/sys/fs/cgroup")


def memory_kills(cgroup_file: Path = CGROUP_FILE, root: Path = CGROUP_ROOT) -> int:
    """Kills for memory in this process's control group so far; 0 where that is not to be found out."""
    try:
        lines = cgroup_file.read_text().splitlines()
    except OSError:
        return 0
    total = 0
    for line in lines:
        controllers, _, name = line.partition(":")[2].partition(":")
        if controllers == "":
            total += _count(root / name.lstrip("/") / "memory.events", root / "memory.events")
        elif "memory" in controllers.split(","):
            total += _count(
                root / "memory" / name.lstrip("/") / "memory.oom_control", root / "memory" / "memory.oom_control"
            )
    return total


def _count(*paths: Path) -> int:
    """From the first file there is: in a container the group's own name is not seen."""
    for path in paths:
        try:
            fields = dict(line.split(None, 1) for line in path.read_text().splitlines() if " " in line)
            return int(fields.get("oom_kill", "0"))
        except (OSError, ValueError):
            continue
    return 0
