"""The callback for Transformers, in a real `Trainer` on the processor."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import elasticgrid
from elasticgrid import environment as env
from elasticgrid.publish import channel, checkpoint

if TYPE_CHECKING:
    from conftest import AgentEnd

torch = pytest.importorskip("torch", reason="torch is not installed: pip install torch==2.13.0")
transformers = pytest.importorskip(
    "transformers", reason="transformers is not installed: it is in the extra `frameworks`"
)
pytest.importorskip(
    "accelerate", reason="accelerate, which the Trainer needs, is not installed: it is in the extra `frameworks`"
)

pytestmark = pytest.mark.torch


def model() -> Any:
    config = transformers.GPT2Config(n_layer=1, n_head=1, n_embd=8, vocab_size=16, n_positions=8)
    return transformers.GPT2LMHeadModel(config)


def data() -> list[dict[str, Any]]:
    return [{"input_ids": torch.tensor([n % 16] * 8), "labels": torch.tensor([n % 16] * 8)} for n in range(64)]


def trainer(pub: elasticgrid.Publisher, folder: Path, **more: Any) -> Any:
    from elasticgrid.publish.transformers_callback import ElasticGridCallback

    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        logging_steps=1,
        **more,
    )
    return transformers.Trainer(
        model=model(), args=arguments, train_dataset=data(), callbacks=[ElasticGridCallback(pub)]
    )


def unreachable_bus(**more: str) -> dict[str, str]:
    return {env.NATS_URL: "nats://127.0.0.1:9", env.TENANT: "t", env.JOB: "j", **more}


def test_every_optimizer_step_is_reported_once_and_checkpoints_are_committed(tmp_path: Path) -> None:
    pub = elasticgrid.publisher(unreachable_bus())
    try:
        trainer(pub, tmp_path, max_steps=6, save_steps=3).train()
        assert (pub.steps_completed, pub.stats.buffered, pub.stats.refused) == (6, 6, 0)
        assert checkpoint.verify(tmp_path / "checkpoint-3").step == 3
        assert checkpoint.verify(tmp_path / "checkpoint-6").step == 6
    finally:
        pub.close(0.0)


async def test_it_saves_and_stops_at_the_agreed_step_and_goes_on_from_there(agent: AgentEnd, tmp_path: Path) -> None:
    first = elasticgrid.publisher({env.AGENT_SOCKET: str(agent.path)})
    training = asyncio.create_task(asyncio.to_thread(trainer(first, tmp_path, max_steps=400, save_strategy="no").train))
    await agent.hears(lambda m: isinstance(m, channel.At), timeout_s=60)
    agent.say(channel.StopAt(step=8))
    await asyncio.wait_for(training, 60)
    stopped_at = first.steps_completed
    uri = str(tmp_path / f"checkpoint-{stopped_at}")
    await agent.hears(lambda m: m == channel.Checkpointed(step=stopped_at, uri=uri))
    await asyncio.to_thread(first.close)
    assert 8 <= stopped_at < 400
    assert channel.Stopping(step=stopped_at) in agent.heard
    assert checkpoint.verify(uri).step == stopped_at

    second = elasticgrid.publisher({env.RESUME_STEP: str(stopped_at), env.RESUME_URI: uri})
    end = stopped_at + 3
    await asyncio.to_thread(
        trainer(second, tmp_path, max_steps=end, save_strategy="no").train, resume_from_checkpoint=second.resume_uri
    )
    assert second.steps_completed == end
