"""`python -m elasticgrid.agent -- COMMAND`: the node agent, with nothing imported that a node does not need."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence

from elasticgrid.agent.config import AgentConfig
from elasticgrid.agent.service import run_agent
from elasticgrid.core.errors import ElasticGridError, InvalidInput
from elasticgrid.logs import configure_logging

INVALID = 2


def main(arguments: Sequence[str]) -> int:
    """Run the agent with `COMMAND` as the workers' command, and return its exit code."""
    command = list(arguments[1:] if arguments[:1] == ["--"] else arguments)
    configure_logging()
    try:
        if not command:
            raise InvalidInput("no command was given", hint="python -m elasticgrid.agent -- python train.py")
        return asyncio.run(run_agent(AgentConfig.from_environment(os.environ), command=command))
    except ElasticGridError as error:
        sys.stderr.write(f"error: {error}\n")
        return INVALID if isinstance(error, InvalidInput) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
