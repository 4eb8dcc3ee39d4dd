"""A running grid for the tests of one file."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest
from doc_grid import Shell, grid_in
from doc_pages import TOP


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """A running grid whose example job is a short one."""
    folder = tmp_path_factory.mktemp("grid")
    shutil.copytree(TOP / "examples", folder / "examples", ignore=shutil.ignore_patterns("__pycache__", ".*"))
    job = folder / "examples/elastic_numpy/job.yaml"
    text = job.read_text()
    ends = [line for line in text.splitlines() if line.strip().startswith("--items")]
    assert len(ends) == 1, f"{job} says in {len(ends)} lines of its command after how many items it ends, not in one"
    job.write_text(text.replace(ends[0], "  --steps 30"))
    (folder / "examples/elastic_numpy/long.yaml").write_text(text.replace(ends[0], "  --steps 1000000"))
    with grid_in(folder) as shell:
        yield shell
