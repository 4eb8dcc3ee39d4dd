"""Settings: which source wins, and that each says where it came from."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from elasticgrid.config.settings import PROJECT_FILE, USER_FILE, Settings, resolve
from elasticgrid.core.errors import InvalidInput


class Machine:
    """A home folder and a project folder of a test."""

    def __init__(self, root: Path) -> None:
        self.home = root / "home"
        self.folder = root / "project"
        self.folder.mkdir()
        self.user_file = self.home / ".config" / USER_FILE
        self.user_file.parent.mkdir(parents=True)
        self.project_file = self.folder / PROJECT_FILE

    def settings(self, flags: Mapping[str, str | None] | None = None, **environ: str) -> Settings:
        return resolve(flags or {}, environ, folder=self.folder, home=self.home)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_with_nothing_set_the_data_folder_is_in_the_current_one(machine: Machine) -> None:
    settings = machine.settings()
    assert settings.data_dir.value == str(machine.folder / ".elasticgrid")
    assert settings.data_dir.source == "default"
    assert settings.gateway_url.value == ""


def test_a_flag_wins_over_the_environment_over_the_project_over_the_user(machine: Machine) -> None:
    machine.user_file.write_text("data_dir: from-user")
    assert machine.settings().data_dir.source == "user file"
    assert machine.settings().data_dir.value == str(machine.user_file.parent / "from-user")
    machine.project_file.write_text("data_dir: from-project")
    project = machine.settings().data_dir
    assert (project.source, project.where) == ("project file", str(machine.project_file))
    assert project.value == str(machine.folder / "from-project")
    environment = machine.settings(ELASTICGRID_DATA_DIR="from-env").data_dir
    assert (environment.source, environment.where) == ("environment", "ELASTICGRID_DATA_DIR")
    flag = machine.settings({"data_dir": "from-flag", "gateway_url": None}, ELASTICGRID_DATA_DIR="from-env").data_dir
    assert (flag.source, flag.value) == ("flag", str(machine.folder / "from-flag"))


def test_the_users_file_is_looked_for_where_xdg_says(machine: Machine, tmp_path: Path) -> None:
    other = tmp_path / "xdg" / USER_FILE
    other.parent.mkdir(parents=True)
    other.write_text("gateway_url: http://127.0.0.1:1")
    assert machine.settings(XDG_CONFIG_HOME=str(tmp_path / "xdg")).gateway_url.value == "http://127.0.0.1:1"
    assert machine.settings(XDG_CONFIG_HOME="relative/is/ignored").gateway_url.value == ""


def test_a_key_on_standard_input_stays_a_dash(machine: Machine) -> None:
    assert machine.settings({"key_file": "-"}).key_file.value == "-"


def test_a_misspelt_setting_is_refused_with_the_file_and_the_nearest_name(machine: Machine) -> None:
    machine.project_file.write_text("datadir: x")
    with pytest.raises(InvalidInput) as caught:
        machine.settings()
    assert caught.value.where == f"{machine.project_file}:1: datadir"
    assert "data_dir" in caught.value.hint


def test_a_projects_gateway_is_never_sent_the_users_own_key(machine: Machine) -> None:
    machine.user_file.write_text("key_file: mine.key")
    machine.project_file.write_text("gateway_url: http://127.0.0.1:1")
    with pytest.raises(InvalidInput):
        machine.settings()
    assert machine.settings({"key_file": "mine.key"}).key_file.source == "flag"
    machine.project_file.write_text("gateway_url: http://127.0.0.1:1\nkey_file: project.key")
    assert machine.settings().key_file.value == str(machine.folder / "project.key")
