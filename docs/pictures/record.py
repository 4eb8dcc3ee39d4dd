"""Records `session.svg` from a real run: the demonstration, why it grew, and its decisions taken again.

    python docs/pictures/record.py

What the commands print is shown as it is, except that the middle of the timeline is left out and folders are shortened.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

WIDTH = 134
SESSION = Path(__file__).with_name("session.svg")
PROGRAM = Path(sys.executable).with_name("elasticgrid")
TIMELINE_HEAD, TIMELINE_TAIL = 10, 3
TIMELINE_LINE = re.compile(r" *\d+\.\d\d s +#\d+ ")

#: Rich's own, without the fonts that it loads from the network.
FORMAT = """<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg" role="img"
 aria-label="A terminal session: elasticgrid demo, decisions why, replay verify">
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace;
 font-size: {char_height}px; line-height: {line_height}px; font-variant-east-asian: full-width; }}
.{unique_id}-title {{ font-size: 18px; font-weight: bold; font-family: system-ui, sans-serif; }}
{styles}
</style>
<defs><clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" />
</clipPath>{lines}</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g></g></svg>
"""


def main() -> None:
    """Run the commands and write the picture."""
    console = Console(record=True, width=WIDTH, file=open(os.devnull, "w", encoding="utf-8"), force_terminal=True)  # noqa: SIM115 - open as long as the console
    folder = Path(tempfile.mkdtemp(prefix="elasticgrid-session-"))
    try:
        lines = run(console, folder, "demo")
        (sequence,) = re.findall(r"#(\d+) .*decision\.placement +4 of 4 nodes", "\n".join(lines))
        (job,) = set(re.findall(r"job (elastic-numpy-\w+) is submitted", "\n".join(lines)))
        (archive,) = folder.glob(".elasticgrid/demo/*/demo.egz")
        shutil.move(archive, folder / "demo.egz")
        run(console, folder, "decisions", "why", job, "--archive", "demo.egz", "--at", sequence)
        run(console, folder, "replay", "verify", "demo.egz")
    finally:
        shutil.rmtree(folder)
    console.save_svg(str(SESSION), title="elasticgrid", theme=MONOKAI, code_format=FORMAT, unique_id="session")


def run(console: Console, folder: Path, *arguments: str) -> list[str]:
    """Run one command in `folder`, show it and what it prints, and return the lines."""
    console.print(Text.assemble(("$ ", "bold green"), ("elasticgrid " + " ".join(arguments), "bold")))
    done = subprocess.run(
        [PROGRAM, *arguments],
        cwd=folder,
        env={**os.environ, "COLUMNS": str(WIDTH)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=True,
    )
    lines = done.stdout.splitlines()
    events = [index for index, line in enumerate(lines) if TIMELINE_LINE.match(line)]
    hidden = set(events[TIMELINE_HEAD:-TIMELINE_TAIL])
    for index, line in enumerate(lines):
        if index not in hidden:
            console.print(Text(line, no_wrap=True, overflow="ellipsis"))
        elif index - 1 not in hidden:
            console.print(Text(f"  ... {len(hidden)} more ...", "dim"))
    console.print()
    return lines


if __name__ == "__main__":
    main()
