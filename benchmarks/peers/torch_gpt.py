"""The peer: the decoder of `turret.models` as plain eager PyTorch, with the fastest spelling of each part.

One projection for q, k and v, fused attention, fused AdamW. Parameters come from a turret state dict.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

HostState = Mapping[str, np.ndarray[Any, Any]]


class Block(nn.Module):
    """Pre-normalized attention and feed-forward."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.output = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.expand, self.project = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, d = x.shape
        q, k, v = (
            part.view(b, t, self.heads, d // self.heads).transpose(1, 2)
            for part in self.qkv(self.norm1(x)).split(d, dim=2)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.output(mixed.transpose(1, 2).reshape(b, t, d))
        return x + self.project(F.gelu(self.expand(self.norm2(x))))


class Gpt(nn.Module):
    """Embeddings, blocks, norm and head."""

    def __init__(self, vocabulary: int, context: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids) + self.positions.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))

    def load(self, state: HostState) -> None:
        """Takes the values of a turret decoder."""
        pairs = {"tokens.weight": "token_embedding.weight", "positions.weight": "position_embedding.weight"}
        pairs |= {"norm.weight": "final_norm.scale", "norm.bias": "final_norm.bias"}
        pairs |= {f"head.{kind}": f"language_model_head.{kind}" for kind in ("weight", "bias")}
        made = {mine: state[theirs] for mine, theirs in pairs.items()}
        for i in range(len(self.blocks)):
            theirs = f"blocks.{i}."
            for kind in ("weight", "bias"):
                scale = "scale" if kind == "weight" else "bias"
                parts = [state[f"{theirs}attention.{name}.{kind}"] for name in ("query", "key", "value")]
                made[f"blocks.{i}.qkv.{kind}"] = np.concatenate(parts)
                made[f"blocks.{i}.output.{kind}"] = state[f"{theirs}attention.output.{kind}"]
                made[f"blocks.{i}.norm1.{kind}"] = state[f"{theirs}attention_norm.{scale}"]
                made[f"blocks.{i}.norm2.{kind}"] = state[f"{theirs}feed_forward_norm.{scale}"]
                for name in ("expand", "project"):
                    made[f"blocks.{i}.{name}.{kind}"] = state[f"{theirs}feed_forward.{name}.{kind}"]
        self.load_state_dict({name: torch.from_numpy(np.array(value)) for name, value in made.items()})


class TorchTrainer:
    """One eager step: forward, loss, backward, clip to norm 1, AdamW."""

    def __init__(self, model: Gpt, *, lr: float, betas: tuple[float, float], weight_decay: float) -> None:
        self.model = model
        matrices = [p for p in model.parameters() if p.ndim >= 2]
        vectors = [p for p in model.parameters() if p.ndim < 2]
        groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": vectors, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=lr, betas=betas, eps=1e-8, fused=True)

    def step(self, ids: np.ndarray[Any, Any], *, lr: float | None = None) -> float:
        """ids: (B, T + 1); returns the loss."""
        for group in self.optimizer.param_groups:
            group["lr"] = group["lr"] if lr is None else lr
        loss = self.loss(ids)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return float(loss.item())

    def loss(self, ids: np.ndarray[Any, Any]) -> torch.Tensor:
        """ids: (B, T + 1); the mean cross entropy of the next token."""
        rows = torch.from_numpy(ids.astype(np.int64))
        logits = self.model(rows[:, :-1])
        return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), rows[:, 1:].reshape(-1))
