"""The console script `elasticgrid`: what an installation without the command line's packages says, and else that.

A trainer's environment has the plain package, and so the script. Nothing but the standard library is imported here.
"""

from __future__ import annotations

import sys

EXTRA = "elasticgrid[cli]"
INVALID = 2


def run() -> None:
    """Run the command line; exit with 2 and the command that installs what is missing where it cannot be run."""
    try:
        from elasticgrid.cli.main import run as run_verbs

        run_verbs()
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing in ("", "elasticgrid"):
            raise
        sys.stderr.write(f"error: the command line needs {missing}, which is not installed: pip install '{EXTRA}'\n")
        sys.exit(INVALID)
