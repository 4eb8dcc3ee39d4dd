"""What lies in a launch's folder, and the keys of ours in its specification: agreed between launcher and engines."""

from __future__ import annotations

from typing import Final

import msgspec

#: The id of the `launch.requested` event: by it a launcher knows its own launches.
REQUEST_KEY: Final = "elasticgrid_request"
#: What is to be bundled (`BundleWish`), where a bundle is wanted.
BUNDLE_KEY: Final = "elasticgrid_bundle"
#: The path, on the launcher's machine, of the credential that nodes are given a copy of.
CREDENTIALS_KEY: Final = "elasticgrid_credentials"
#: The variables that are secrets, and the path of the file of each on the launcher's machine.
SECRETS_KEY: Final = "elasticgrid_secrets"
#: The keys of caches that the setup command fills.
CACHES_KEY: Final = "elasticgrid_caches"

#: What the launch enters the bus with.
CREDENTIAL_FILE: Final = "bus.json"
#: The folder with the copies of the job's secrets, one file for each, called as its variable.
SECRETS_DIR: Final = "secrets"
#: The hosts of the launch, by rank.
HOSTS_FILE: Final = "hosts.json"
#: Which bundle the launch has (`BundleFile`).
BUNDLE_FILE: Final = "bundle.json"
#: A bundle unpacked on the launcher's machine.
WORKSPACE_DIR: Final = "workspace"


class BundleFile(msgspec.Struct, frozen=True):
    """The archive a launch was given, and its SHA-256."""

    archive: str
    digest: str
