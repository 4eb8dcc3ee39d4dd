"""Engines of our own, and their registration with iroh-tinker."""

from __future__ import annotations

from iroh_tinker.cloud.engines import register_engine

from elasticgrid.launcher.engines.aws import AwsInstances
from elasticgrid.launcher.engines.azure import AzureMachines
from elasticgrid.launcher.engines.gcp import GcpInstances
from elasticgrid.launcher.engines.local import LocalProcesses
from elasticgrid.launcher.engines.missing import MissingEngine
from elasticgrid.launcher.engines.ssh import SshHosts


def register_engines() -> None:
    """Make the names of engines mean ours in this process; a second call changes nothing."""
    register_engine("local", LocalProcesses)
    register_engine("ssh", SshHosts)
    register_engine("aws", AwsInstances)
    register_engine("gcp", GcpInstances)
    register_engine("azure", AzureMachines)
    for name in ("sky", "spotty"):
        register_engine(name, MissingEngine)
