"""Where the example job is: beside the package in a checkout, inside it when installed."""

from __future__ import annotations

from pathlib import Path

from elasticgrid.core.errors import NotFound

NAME = "elastic_numpy"


def example_folder() -> Path:
    """The folder of the example.

    Raises:
        NotFound: this installation has no examples.
    """
    package = Path(__file__).parent.parent
    for folder in (package / "examples" / NAME, package.parent / "examples" / NAME):
        if (folder / "job.yaml").is_file():
            return folder
    raise NotFound("the example job is not installed", where=NAME, hint="run the demonstration from a checkout")
