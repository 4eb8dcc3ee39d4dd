"""Who trains together: the members of a round, their ranks and the address they meet at."""

from __future__ import annotations

import msgspec

from elasticgrid.core.errors import IllegalTransition
from elasticgrid.core.events import CheckpointRef, Member, WorldDecided


class ReadyNode(msgspec.Struct, frozen=True, gc=False):
    """A node whose agent waits for a world.

    Attributes:
        node: its id.
        host: address the others reach it by.
        free_port: the port on it that was last said to be free.
        joined_sequence: where its `node.joined` stands in the log.
    """

    node: str
    host: str
    free_port: int
    joined_sequence: int


def form_world(
    previous: tuple[Member, ...],
    ready: tuple[ReadyNode, ...],
    *,
    round: int,  # noqa: A002 - the field of the event has this name
    nproc_per_node: int,
    resume: CheckpointRef | None,
) -> WorldDecided:
    """The next round's world out of every node in `ready`.

    Nodes of `previous` come first and keep their order, so group rank 0 is the first survivor; the others follow in
    the order they joined in. The master is the node with group rank 0, at the port it last said to be free.

    Raises:
        IllegalTransition: `ready` is empty.
    """
    waiting = {node.node: node for node in ready}
    if not waiting:
        raise IllegalTransition(f"round {round} has no node that is ready", hint="wait until a node has joined")
    ranked = sorted(previous, key=lambda member: member.group_rank)
    order = [waiting.pop(member.node) for member in ranked if member.node in waiting]
    order += sorted(waiting.values(), key=lambda node: (node.joined_sequence, node.node))
    return WorldDecided(
        round=round,
        members=tuple(Member(node=node.node, group_rank=rank) for rank, node in enumerate(order)),
        nproc_per_node=nproc_per_node,
        master_addr=order[0].host,
        master_port=order[0].free_port,
        resume=resume,
    )
