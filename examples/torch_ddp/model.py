"""A small transformer over bytes."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

SYMBOLS = 256


class Transformer(nn.Module):  # type: ignore[misc] # torch is not typed where types are checked
    """Predicts each next byte of a window.

    Double precision, so that sums over ranks differ between sizes of the world in their last bits only.
    """

    def __init__(self, window_bytes: int, *, width: int = 32, layers: int = 2, heads: int = 2) -> None:
        super().__init__()
        double = torch.float64
        self.symbols = nn.Embedding(SYMBOLS, width, dtype=double)
        self.places = nn.Embedding(window_bytes, width, dtype=double)
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, dropout=0.0, batch_first=True, norm_first=True, dtype=double
        )
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.output = nn.Linear(width, SYMBOLS, dtype=double)
        later = nn.Transformer.generate_square_subsequent_mask(window_bytes, dtype=double)
        self.register_buffer("later", later, persistent=False)

    def forward(self, windows: torch.Tensor) -> torch.Tensor:
        """The mean cross-entropy, in nats per byte, of windows of shape (samples, window_bytes + 1)."""
        given, wanted = windows[:, :-1], windows[:, 1:]
        seen = self.symbols(given) + self.places.weight
        logits = self.output(self.layers(seen, mask=self.later, is_causal=True))
        return functional.cross_entropy(logits.flatten(0, 1), wanted.flatten())
