"""PyTorch's side of a training step: the model of the benchmarks on the device, eager or through torch.compile."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np


def absent(spec: str) -> str | None:
    """Why there is nothing to compare with; None where there is."""
    if spec == "cuda:emulated":
        return "PyTorch has nothing that the emulator's times could be compared with"
    try:
        import torch
    except ImportError as error:
        return f"PyTorch is not installed ({error})"
    if spec.partition(":")[0] == "cuda" and not torch.cuda.is_available():
        return f"PyTorch {torch.__version__} finds no CUDA device"
    return None


def torch_step(shape: Any, state: Path, spec: str, *, compiled: bool) -> Callable[[Any, float], float]:
    """One step from the weights in `state`: forward, backward, clip, AdamW; products of float32 stay float32."""
    import torch
    import torch.nn.functional as F
    from peers.torch_gpt import Gpt, TorchTrainer
    from shapes import VOCABULARY
    from train_step import BETAS, DECAY, LR

    torch.set_float32_matmul_precision("highest")
    name, _, number = spec.partition(":")
    device = f"cuda:{number or 0}" if name == "cuda" else "cpu"

    def mean(model: Any, rows: Any) -> Any:
        logits = model(rows[:, :-1])
        return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), rows[:, 1:].reshape(-1))

    forward = torch.compile(mean) if compiled else mean

    class Trainer(TorchTrainer):
        """The benchmarks' trainer with its batches on the device."""

        def loss(self, ids: np.ndarray[Any, Any]) -> Any:
            return forward(self.model, torch.from_numpy(ids.astype(np.int64)).to(device))

    model = Gpt(VOCABULARY, shape.context, shape.width, shape.heads, shape.layers).to(device)
    model.load(dict(np.load(state)))
    trainer = Trainer(model, lr=LR, betas=BETAS, weight_decay=DECAY)
    return lambda ids, lr: trainer.step(ids, lr=lr)
