"""Adam with paged moments beside contiguous ones: the time of an update, the largest array, and the same bits.

python benchmarks/paged_adam.py --json

Alternating turns in one process, medians. Exits with 1 where the parameters are not the same bits afterwards.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any

import numpy as np

from turret.models import Decoder, DecoderConfig
from turret.optim import Adam
from turret.registry import use_backend
from turret.tensor import Gradients, Tensor, tensor
from turret.tensor.graph import Native

PAGES = (4096, 65536, 1048576)
UPDATES = 5
"""Updates a turn."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="cpu")
    parser.add_argument("--page", type=int, action="append", metavar="N", help=f"elements, repeatable {list(PAGES)}")
    parser.add_argument("--rounds", type=int, default=7, help="turns of each after the first, which warms up")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error(f"--rounds {options.rounds}; wanted at least 1")
    rows = [measure(options.backend, page, options.rounds) for page in options.page or PAGES]
    for row in rows:
        print(json.dumps(row) if options.json else "  ".join(f"{key} {value}" for key, value in row.items()))
    if not all(row["same_bits"] for row in rows):
        raise SystemExit("paged and contiguous moments gave other bits")


def measure(backend: str, page: int, rounds: int) -> dict[str, Any]:
    """One size of pages."""
    with use_backend(backend):
        ways = {"contiguous": _Way(None), "paged": _Way(page)}
        times: dict[str, list[float]] = {name: [] for name in ways}
        for turn in range(rounds + 1):
            for name, way in ways.items():
                taken = way.turn()
                if turn > 0:
                    times[name].append(taken)
    one, other = (list(way.model.state_dict().values()) for way in ways.values())
    return {
        "page": page,
        "parameters": ways["paged"].model.parameter_count(),
        "contiguous_ms": statistics.median(times["contiguous"]),
        "paged_ms": statistics.median(times["paged"]),
        "largest_contiguous": ways["contiguous"].largest_bytes(),
        "largest_paged": ways["paged"].largest_bytes(),
        "same_bits": all(a.tobytes() == b.tobytes() for a, b in zip(one, other, strict=True)),
    }


class _Way:
    """A model with its optimizer and the same gradients at every update."""

    def __init__(self, page: int | None) -> None:
        config = DecoderConfig(vocabulary=8192, context=256, width=512, heads=8, blocks=4, feed_forward=2048)
        self.model = Decoder(config, seed=0)
        self.optimizer = Adam(self.model.named_parameters(), lr=1e-3, page_elements=page)
        draw, parameters = np.random.default_rng(0), self.model.parameters()
        values: dict[Tensor, Native] = {
            p: tensor(draw.standard_normal(p.shape, np.float32) * np.float32(1e-3)).value for p in parameters
        }
        self.gradients = Gradients(parameters[0].backend, values)

    def turn(self) -> float:
        """Milliseconds of an update."""
        began = time.perf_counter()
        for _ in range(UPDATES):
            self.optimizer.step(self.gradients)
        assert self.optimizer.stats is not None
        float(self.optimizer.stats.gradient_norm)  # waits for the device
        return (time.perf_counter() - began) * 1e3 / UPDATES

    def largest_bytes(self) -> int:
        """Of one array of moments."""
        parameters = {id(p) for p in self.model.parameters()}
        return max(4 * int(np.prod(t.shape)) for t in self.optimizer.held_tensors() if id(t) not in parameters)


if __name__ == "__main__":
    main()
