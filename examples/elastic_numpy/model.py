"""iroh-tinker's numpy language model over bytes, with exact averaging over uneven shares and an exact checkpoint."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Mapping
from pathlib import Path

import iroh_tinker
import links
import numpy as np

#: The smallest of iroh-tinker's shapes: 256 symbols, which are the bytes.
PARAMETERS = 66_112


class LanguageModel:
    """One rank's replica; all ranks hold the same parameters after every update."""

    def __init__(self, rank: int, world_size: int, rendezvous_dir: str, learning_rate: float) -> None:
        self._world_size = world_size
        self._adam = iroh_tinker.AdamParams(learning_rate=learning_rate)
        folder = Path(rendezvous_dir).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        with contextlib.chdir(folder):  # the client makes a cache folder where it is created
            self.client = iroh_tinker.TrainingClient(
                base_model="synthetic",
                rank=rank,
                world_size=world_size,
                backend="numpy",
                transport="socket" if world_size > 1 else "local",
                rendezvous_dir=str(folder),
                config=iroh_tinker.TrainingConfig(
                    synthetic=True,
                    synthetic_params=PARAMETERS,
                    metrics_enabled=False,
                    gradient_compression=False,
                    device="cpu",
                ),
            )
        links.ready(self.client.transport, folder)
        links.quick(self.client.transport)

    def update(self, mine: list[tuple[list[int], list[int]]], count: int) -> float | None:
        """One optimizer step of the whole world on `count` windows of which this rank has `mine`, perhaps none.

        Ranks average their gradients with equal weight, so each gradient, a mean over this rank's windows, is weighted
        by its share first: the result is the mean over all windows, however they were shared out.

        Returns:
            The mean cross-entropy of this rank's windows before the update, in nats per byte; None without windows.
        """
        loss = None
        if mine:
            data = [iroh_tinker.Datum(input_ids=given, target_ids=target) for given, target in mine]
            loss = float(self.client.forward_backward(data).loss)
            weight = np.float32(len(mine) * self._world_size / count)
            backend = self.client.backend
            backend.apply_gradients({name: flat * weight for name, flat in backend.extract_gradients().items()})
        self.client.optim_step(self._adam)
        return loss

    def state(self) -> dict[str, bytes]:
        """The files of a checkpoint. The moments of Adam are a file of their own: the backend's has parameters only."""
        backend = self.client.backend
        moments = io.BytesIO()
        np.savez(
            moments,
            **{f"m.{name}": value for name, value in backend._m.items()},
            **{f"v.{name}": value for name, value in backend._v.items()},
        )
        return {"model.npz": backend.checkpoint(), "adam.npz": moments.getvalue()}

    def restore(self, files: Mapping[str, bytes]) -> None:
        """Go on exactly where `state` was taken, in a world of any size."""
        backend = self.client.backend
        backend.restore(files["model.npz"])
        with np.load(io.BytesIO(files["adam.npz"])) as moments:
            for name in backend.params:
                backend._m[name] = moments[f"m.{name}"]
                backend._v[name] = moments[f"v.{name}"]
