"""What the image is built from, and what is in the wheel that it is built with."""

from __future__ import annotations

import configparser
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

TOP = Path(__file__).parents[2]
DOCKERFILE = TOP / "services" / "Dockerfile"


def build_stage() -> list[list[str]]:
    """The instructions of the stage `build`, in words."""
    stages = DOCKERFILE.read_text().split("\nFROM ")
    (stage,) = [stage for stage in stages if stage.split("\n", 1)[0].endswith(" AS build")]
    return [line.split() for line in stage.splitlines()[1:] if line]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that the image's first stage builds of the files it copies, and of those alone."""
    pytest.importorskip("hatchling", reason="hatchling, which builds the wheel, is not installed")
    source = tmp_path_factory.mktemp("source")
    for instruction, *words in build_stage():
        if instruction == "COPY":
            *copied, to = words
            for each in copied:
                if (TOP / each).is_dir():
                    shutil.copytree(TOP / each, source / to, ignore=shutil.ignore_patterns("__pycache__"))
                else:
                    shutil.copy(TOP / each, source / to)
    wheels = tmp_path_factory.mktemp("wheels")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(wheels)]
    built = subprocess.run(
        [*command, "--no-build-isolation", "--no-index", "."],
        cwd=source,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    (found,) = wheels.glob("*.whl")
    return found


def test_what_the_image_copies_is_enough_to_build_its_wheel(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    wanted = {f"elasticgrid/examples/elastic_numpy/{each}" for each in ("job.yaml", "grid.yaml", "train.py")}
    assert wanted <= names


def console_script(wheel: Path, folder: Path, before: str, *flags: str) -> subprocess.CompletedProcess[str]:
    """`elasticgrid --help` of the wheel, unpacked into `folder`, after some lines of Python."""
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(folder)
    scripts = configparser.ConfigParser()
    scripts.read(next(folder.glob("*.dist-info")) / "entry_points.txt")
    module, function = scripts["console_scripts"]["elasticgrid"].split(":")
    called = f"from {module} import {function}\n{function}()"
    program = f"import sys\n{before}\nsys.argv = ['elasticgrid', '--help']\n{called}"
    return subprocess.run(
        [sys.executable, "-P", *flags, "-c", program],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    ("before", "flags", "missing"),
    [
        pytest.param("", ("-S",), "typer", id="nothing but the wheel"),
        pytest.param("sys.modules['typer'] = sys.modules['rich'] = None", (), "typer", id="the extra server"),
        pytest.param("sys.modules['rich'] = None", (), "rich", id="all but rich"),
    ],
)
def test_without_the_packages_of_the_command_line_its_script_says_what_to_install(
    wheel: Path, tmp_path: Path, before: str, flags: tuple[str, ...], missing: str
) -> None:
    ended = console_script(wheel, tmp_path, before, *flags)
    assert ended.returncode == 2
    assert ended.stdout == ""
    said = f"the command line needs {missing}, which is not installed: pip install 'elasticgrid[cli]'"
    assert ended.stderr == f"error: {said}\n"


def test_with_them_the_script_is_the_command_line(wheel: Path, tmp_path: Path) -> None:
    ended = console_script(wheel, tmp_path, "")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "elasticgrid demo" in ended.stdout
