"""The two streams: what is configured, and making them so.

`GRID_EVENTS` keeps everything for ever and takes atomic batches. `GRID_SAMPLES` forgets by age and size, oldest first,
and on a single server is not synced to disk per message.
"""

from __future__ import annotations

from typing import Any

import msgspec
import stamina
from nats.aio.client import Client

from elasticgrid.bus import api
from elasticgrid.bus.subjects import EVENTS_ROOT, EVENTS_STREAM, LIVE_ROOT, SAMPLES_ROOT, SAMPLES_STREAM
from elasticgrid.core.errors import BusError, BusUnavailable, NotAllowed

_NS_PER_S = 1_000_000_000

#: For how long a second publish with the same message id is recognised as the first.
DUPLICATE_WINDOW_S = 120
SAMPLES_MAX_AGE_S = 7 * 86_400
SAMPLES_MAX_BYTES = 1024**3
_MAKERS = "the launcher makes it, or `elasticgrid up`"
#: How long `ensure_streams` waits for JetStream to have a leader.
PATIENCE_S = 15.0


class _WholeInfo(api.ApiReply, frozen=True, kw_only=True):
    config: dict[str, Any] = msgspec.field(default_factory=dict)


def events_config(replicas: int = 1) -> dict[str, Any]:
    """The configuration of `GRID_EVENTS`: no limits, nothing deleted or purged, a full disk refuses new events."""
    return {
        "name": EVENTS_STREAM,
        "description": "every fact and decision of the grid; the source of all state",
        "subjects": [f"{EVENTS_ROOT}.>"],
        "storage": "file",
        "retention": "limits",
        "discard": "new",
        "max_msgs": -1,
        "max_bytes": -1,
        "max_age": 0,
        "num_replicas": replicas,
        "duplicate_window": DUPLICATE_WINDOW_S * _NS_PER_S,
        "allow_direct": True,
        "allow_atomic": True,
        "deny_delete": True,
        "deny_purge": True,
        "republish": {"src": f"{EVENTS_ROOT}.>", "dest": f"{LIVE_ROOT}.>"},
    }


def samples_config(
    replicas: int = 1, *, max_age_s: int = SAMPLES_MAX_AGE_S, max_bytes: int = SAMPLES_MAX_BYTES
) -> dict[str, Any]:
    """The configuration of `GRID_SAMPLES`: bounded by age and bytes, the oldest dropped first."""
    config: dict[str, Any] = {
        "name": SAMPLES_STREAM,
        "description": "step samples of training processes; they age out",
        "subjects": [f"{SAMPLES_ROOT}.>"],
        "storage": "file",
        "retention": "limits",
        "discard": "old",
        "max_msgs": -1,
        "max_bytes": max_bytes,
        "max_age": max_age_s * _NS_PER_S,
        "num_replicas": replicas,
        "duplicate_window": min(DUPLICATE_WINDOW_S, max_age_s) * _NS_PER_S,
        "allow_direct": True,
    }
    if replicas == 1:
        config["persist_mode"] = "async"
    return config


async def ensure_streams(client: Client, *, replicas: int = 1) -> None:
    """Create both streams, or bring existing ones to this configuration; replicas are never taken away.

    Raises:
        BusError: a stream of that name with other subjects or without file storage lies there, another stream has taken
            our subjects, or the server is too old for atomic batches.
        BusUnavailable: JetStream did not answer within `PATIENCE_S`.
    """
    for config in (events_config(replicas), samples_config(replicas)):
        async for attempt in stamina.retry_context(
            on=BusUnavailable, attempts=None, timeout=PATIENCE_S, wait_initial=0.05, wait_max=1.0, wait_jitter=0.05
        ):
            with attempt:
                await _ensure(client, config)


async def _ensure(client: Client, config: dict[str, Any]) -> None:
    name = config["name"]
    try:
        existing = await api.stream_info(client, name)
    except api.ApiError as error:
        if error.err_code != api.STREAM_NOT_FOUND:
            raise
        try:
            made = await _apply(client, "CREATE", config)
        except NotAllowed as refusal:
            raise BusUnavailable("the stream is not there yet", where=name, hint=_MAKERS) from refusal
    else:
        found = existing.config
        if found is None or found.subjects != config["subjects"] or found.storage != "file":
            raise BusError(
                "a stream of this name that is not ours lies there: "
                f"subjects {', '.join(found.subjects) if found else 'unknown'}, "
                f"storage {found.storage if found else 'unknown'}",
                where=name,
                hint="use another bus, or remove that stream with the tool that made it",
            )
        # How a stream persists is fixed when it is made, so an update has to repeat it.
        kept = {key: value for key, value in config.items() if key != "persist_mode"}
        if found.persist_mode != "default":
            kept["persist_mode"] = found.persist_mode
        # Somebody who set up a cluster with more replicas did not want them taken away by a service that starts.
        kept["num_replicas"] = max(config["num_replicas"], found.num_replicas)
        as_it_is = await api.call(client, f"STREAM.INFO.{name}", {}, _WholeInfo)
        if all(as_it_is.config.get(key) == value for key, value in kept.items()):
            return
        try:
            made = await _apply(client, "UPDATE", kept)
        except NotAllowed as refusal:
            # It is another service's to change. What all need must be so already.
            if "republish" in config and not found.republish:
                raise BusUnavailable("the stream is an older version's", where=name, hint=_MAKERS) from refusal
            made = existing
    if config.get("allow_atomic") and not (made.config and made.config.allow_atomic):
        raise BusError(
            "the server does not know atomic batches", where=name, hint="elasticgrid needs nats-server 2.12 or later"
        )


async def _apply(client: Client, verb: str, config: dict[str, Any]) -> api.StreamInfo:
    name = config["name"]
    try:
        return await api.call(client, f"STREAM.{verb}.{name}", config, api.StreamInfo)
    except api.ApiError as error:
        if error.err_code == api.NO_SUITABLE_PEERS:
            raise BusUnavailable(error.what, where=name, hint="are enough servers of the cluster up?") from error
        raise BusError(
            f"cannot {verb.lower()} the stream: {error.what}",
            where=name,
            hint=f"does another stream hold {', '.join(config['subjects'])}?",
        ) from error
