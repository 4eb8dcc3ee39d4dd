"""The variables that pass from launcher to agent to worker: every name in one place."""

from __future__ import annotations

from typing import Final

#: Bus address and the file with its credential.
NATS_URL: Final = "ELASTICGRID_NATS_URL"
CREDENTIALS: Final = "ELASTICGRID_CREDENTIALS"
#: The certificates, as PEM, that the bus's own is checked with.
NATS_CA: Final = "ELASTICGRID_NATS_CA"
#: For launchers: the file with the secret that all credentials are made from.
BUS_AUTHORITY: Final = "ELASTICGRID_BUS_AUTHORITY"
#: For launchers: for how many seconds the credential of a launch is valid.
CREDENTIAL_LIFE_S: Final = "ELASTICGRID_CREDENTIAL_LIFE_S"

#: For launchers: what the nodes they start reach the bus by, where that is not what the launcher itself uses.
NODE_NATS_URL: Final = "ELASTICGRID_NODE_NATS_URL"
NODE_CREDENTIALS: Final = "ELASTICGRID_NODE_CREDENTIALS"

#: Whose node this is; set by the launcher for the agent, by the agent for the workers.
TENANT: Final = "ELASTICGRID_TENANT"
JOB: Final = "ELASTICGRID_JOB"
PROVIDER: Final = "ELASTICGRID_PROVIDER"
ATTEMPT: Final = "ELASTICGRID_ATTEMPT"
#: 1 where the launcher started the agent, so that the log must know its launch for as long as it runs.
LAUNCHED: Final = "ELASTICGRID_LAUNCHED"
#: Set by the agent: `<attempt>-<index of the node in its launch>`.
NODE: Final = "ELASTICGRID_NODE"

#: For agents: workers per node, the folder of the node, the folder every node of the job sees.
NPROC_PER_NODE: Final = "ELASTICGRID_NPROC_PER_NODE"
NODE_DIR: Final = "ELASTICGRID_NODE_DIR"
SHARED_DIR: Final = "ELASTICGRID_SHARED_DIR"
#: For agents: the failures of the job's own that are answered with a new round, as its workers are told.
MAX_RESTARTS: Final = "ELASTICGRID_MAX_RESTARTS"
#: For setup commands and workers: the folder of the machine with the job's caches, one folder for each key.
CACHE_DIR: Final = "ELASTICGRID_CACHE_DIR"
#: For agents and setup commands: the folder with the job's secrets, one private file for each variable of the workers.
SECRETS_DIR: Final = "ELASTICGRID_SECRETS_DIR"
#: For agents, and for the launchers that start them: how long without the bus until the node ends itself; empty or
#: absent means never.
ORPHAN_TIMEOUT_S: Final = "ELASTICGRID_ORPHAN_TIMEOUT_S"
#: For agents: where notices that the node will be taken away come from, a list of aws, gcp, azure, file:PATH, signal
#: and auto; how long before the end a SIGTERM comes where it is one; other addresses of the metadata services.
NOTICES: Final = "ELASTICGRID_NOTICES"
SIGNAL_NOTICE_S: Final = "ELASTICGRID_SIGNAL_NOTICE_S"
AWS_METADATA_URL: Final = "ELASTICGRID_AWS_METADATA_URL"
GCP_METADATA_URL: Final = "ELASTICGRID_GCP_METADATA_URL"
AZURE_METADATA_URL: Final = "ELASTICGRID_AZURE_METADATA_URL"
#: For agents: without a step for so long (0: never) workers count as stuck, before their first step for so long.
STUCK_AFTER_S: Final = "ELASTICGRID_STUCK_AFTER_S"
STUCK_AT_START_S: Final = "ELASTICGRID_STUCK_AT_START_S"
#: For agents: bytes of a worker's log before a new file begins, older files kept, and 1 to repeat all on the output.
LOG_BYTES: Final = "ELASTICGRID_LOG_BYTES"
LOG_FILES: Final = "ELASTICGRID_LOG_FILES"
TEE: Final = "ELASTICGRID_TEE"

#: For workers: the world they are in, where they resume, and how they talk with their agent.
ROUND: Final = "ELASTICGRID_ROUND"
RESUME_STEP: Final = "ELASTICGRID_RESUME_STEP"
RESUME_URI: Final = "ELASTICGRID_RESUME_URI"
CHECKPOINT_DIR: Final = "ELASTICGRID_CHECKPOINT_DIR"
RENDEZVOUS_DIR: Final = "ELASTICGRID_RENDEZVOUS_DIR"
AGENT_SOCKET: Final = "ELASTICGRID_AGENT_SOCKET"
#: For workers of a run without a grid, with digits of that node's own behind it: whose everything is that they start.
RUN_MARK: Final = "ELASTICGRID_RUN_"
#: For workers: the file in which they say why they fail, and the one their threads' places are written to when asked.
ERROR_FILE: Final = "ELASTICGRID_ERROR_FILE"
STACKS_FILE: Final = "ELASTICGRID_STACKS_FILE"
