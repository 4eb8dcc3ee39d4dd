"""The variables that pass from launcher to agent to worker: every name in one place."""

from __future__ import annotations

from typing import Final

#: Bus address and the file with its credential.
NATS_URL: Final = "ELASTICGRID_NATS_URL"
CREDENTIALS: Final = "ELASTICGRID_CREDENTIALS"

#: For launchers: what the nodes they start reach the bus by, where that is not what the launcher itself uses.
NODE_NATS_URL: Final = "ELASTICGRID_NODE_NATS_URL"
NODE_CREDENTIALS: Final = "ELASTICGRID_NODE_CREDENTIALS"

#: Whose node this is; set by the launcher for the agent, by the agent for the workers.
TENANT: Final = "ELASTICGRID_TENANT"
JOB: Final = "ELASTICGRID_JOB"
PROVIDER: Final = "ELASTICGRID_PROVIDER"
ATTEMPT: Final = "ELASTICGRID_ATTEMPT"
#: Set by the agent: `<attempt>-<index of the node in its launch>`.
NODE: Final = "ELASTICGRID_NODE"

#: For agents: workers per node, grace, the folder of the node, the folder every node of the job sees.
NPROC_PER_NODE: Final = "ELASTICGRID_NPROC_PER_NODE"
NODE_DIR: Final = "ELASTICGRID_NODE_DIR"
SHARED_DIR: Final = "ELASTICGRID_SHARED_DIR"
#: For agents: how long without the bus until the node ends itself; empty or absent means never.
ORPHAN_TIMEOUT_S: Final = "ELASTICGRID_ORPHAN_TIMEOUT_S"

#: For workers: the world they are in, where they resume, and how they talk with their agent.
ROUND: Final = "ELASTICGRID_ROUND"
RESUME_STEP: Final = "ELASTICGRID_RESUME_STEP"
RESUME_URI: Final = "ELASTICGRID_RESUME_URI"
CHECKPOINT_DIR: Final = "ELASTICGRID_CHECKPOINT_DIR"
RENDEZVOUS_DIR: Final = "ELASTICGRID_RENDEZVOUS_DIR"
AGENT_SOCKET: Final = "ELASTICGRID_AGENT_SOCKET"
