"""The callback for Lightning, in a real `Trainer` on the processor."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import elasticgrid
from elasticgrid import environment as env
from elasticgrid.core.errors import InvalidInput
from elasticgrid.publish import channel, checkpoint

if TYPE_CHECKING:
    from conftest import AgentEnd

torch = pytest.importorskip("torch", reason="torch is not installed: pip install torch==2.13.0")
lightning = pytest.importorskip("lightning", reason="lightning is not installed: it is in the extra `frameworks`")

pytestmark = pytest.mark.torch


def fit(callback: Any, folder: Path, **more: Any) -> None:
    class Line(lightning.LightningModule):  # type: ignore[misc, name-defined] # a module that may not be there
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return self.layer(batch).square().mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    data = torch.utils.data.DataLoader(torch.ones(4_000, 4), batch_size=2)
    lightning.Trainer(
        callbacks=[callback],
        default_root_dir=folder,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **more,
    ).fit(Line(), data, ckpt_path=callback.resume_path)


def callback_for(environ: dict[str, str], **more: Any) -> Any:
    from elasticgrid.publish.lightning_callback import ElasticGridCallback

    return ElasticGridCallback(elasticgrid.publisher(environ), **more)


def test_every_optimizer_step_is_reported_once_and_checkpoints_are_committed(tmp_path: Path) -> None:
    bus = {env.NATS_URL: "nats://127.0.0.1:9", env.TENANT: "t", env.JOB: "j"}
    callback = callback_for({**bus, env.CHECKPOINT_DIR: str(tmp_path), env.ROUND: "2"}, checkpoint_every=4)
    pub = callback.pub
    try:
        fit(callback, tmp_path, max_steps=9, accumulate_grad_batches=3)
        assert (pub.steps_completed, pub.stats.buffered, pub.stats.refused) == (9, 9, 0)
        latest = checkpoint.latest(tmp_path)
        assert latest == checkpoint.path_of(tmp_path, 8, round=2)
        assert checkpoint.verify(checkpoint.path_of(tmp_path, 4, round=2)).step == 4
    finally:
        pub.close(0.0)


async def test_it_saves_and_stops_at_the_agreed_step_and_goes_on_from_there(agent: AgentEnd, tmp_path: Path) -> None:
    shared = {env.CHECKPOINT_DIR: str(tmp_path)}
    first = callback_for({**shared, env.AGENT_SOCKET: str(agent.path)})
    training = asyncio.create_task(asyncio.to_thread(fit, first, tmp_path, max_steps=100_000))
    await agent.hears(lambda m: isinstance(m, channel.At), timeout_s=60)
    agent.say(channel.StopAt(step=20))
    await asyncio.wait_for(training, 60)
    stopped_at = first.pub.steps_completed
    uri = checkpoint.path_of(tmp_path, stopped_at)
    await agent.hears(lambda m: m == channel.Checkpointed(step=stopped_at, uri=uri))
    await asyncio.to_thread(first.pub.close)
    assert 20 <= stopped_at < 100_000
    assert channel.Stopping(step=stopped_at) in agent.heard

    second = callback_for({**shared, env.RESUME_STEP: str(stopped_at), env.RESUME_URI: uri})
    await asyncio.to_thread(fit, second, tmp_path, max_steps=stopped_at + 5)
    assert second.pub.steps_completed == stopped_at + 5


def test_a_negative_number_of_steps_is_refused() -> None:
    with pytest.raises(InvalidInput):
        callback_for({}, checkpoint_every=-1)
