"""What is installed is what is built: the page's files are in the wheel."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

TOP = Path(__file__).parents[2]
ASSETS = TOP / "elasticgrid" / "gateway" / "dashboard" / "assets"


def test_the_wheel_has_every_file_of_the_page(tmp_path: Path) -> None:
    pytest.importorskip("hatchling", reason="hatchling, which builds the wheel, is not installed")
    built = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=TOP,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    (wheel,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    wanted = {f"elasticgrid/gateway/dashboard/assets/{each.name}" for each in ASSETS.iterdir()}
    assert len(wanted) > 20
    assert wanted <= names
