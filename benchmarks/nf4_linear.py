"""The packed linear layer beside NumPy's float32 product of the same shape: alternating turns, medians, their ratio.

python benchmarks/nf4_linear.py --json
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
from alternate import contenders, serve

from turret.spi import ScaleCode

X = npt.NDArray[Any]
Call = Callable[[X, int], X]
Put = Callable[[X], X]

SHAPES = ((1536, 576), (576, 1536), (4096, 4096))
ROWS = (1, 2, 4, 8, 16, 256)
MARKS = {1: 2.0, 256: 1 / 1.15}
"""The least speed, as a multiple of NumPy's, that is aimed at for a number of rows."""

STREAMED = 256 * 2**20
"""Bytes of float32 weights that calls take in turns: a model's layers come from memory, not from cache."""

TURN_S = 0.15
"""Seconds of one turn, its warm-up apart."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default="cpu")
    parser.add_argument("--shape", action="append", type=_shape, metavar="O,I", help="of the weight; repeatable")
    parser.add_argument("--rows", action="append", type=int, metavar="N", help="of x; repeatable")
    parser.add_argument("--block", type=int, default=64)
    parser.add_argument("--scales", default="float32", choices=get_args(ScaleCode), help="how scales are kept")
    parser.add_argument("--resident", action="store_true", help="one weight only, which caches may hold")
    parser.add_argument("--vjp", action="store_true", help="the gradient of x instead")
    parser.add_argument("--rounds", type=int, default=8, help="turns of each contender after the first")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--worker", nargs=2, metavar=("NAME", "SHAPE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        name, shape = options.worker
        serve(worker(name, _shape(shape), options))
        return
    if options.rounds < 1 or min(options.rows or ROWS) < 1:
        parser.error("--rounds and --rows take numbers from 1")
    results = [r for shape in options.shape or SHAPES for r in measure(shape, options)]
    print(json.dumps(results, indent=2) if options.json else "\n".join(map(described, results)))


def _shape(text: str) -> tuple[int, int]:
    outs, ins = (int(part) for part in text.split(","))
    return outs, ins


def described(r: dict[str, Any]) -> str:
    """One result in a line."""
    mark = "" if r["mark"] is None else f"  mark {r['mark']:.2f} {'reached' if r['reached'] else 'MISSED'}"
    return (
        f"({r['outs']}, {r['ins']}) rows {r['rows']:3}  "
        f"turret {r['turret_us']:8.0f} us  numpy {r['numpy_us']:8.0f} us  "
        f"numpy/turret {r['numpy_over_turret']:.2f} (undisturbed {r['undisturbed']:.2f})  "
        f"error {r['error']:.1e}{mark}"
    )


def measure(shape: tuple[int, int], options: argparse.Namespace) -> list[dict[str, Any]]:
    """Alternating turns at one shape, for each number of rows."""
    flags = ["--backend", options.backend, "--block", str(options.block), "--scales", options.scales]
    flags += [f"--{flag}" for flag in ("resident", "vjp") if getattr(options, flag)]
    text = f"{shape[0]},{shape[1]}"
    commands = {name: [__file__, *flags, "--worker", name, text] for name in ("turret", "numpy")}
    results = []
    with contenders(commands) as running:
        for rows in options.rows or ROWS:
            us: dict[str, list[float]] = {name: [] for name in running}
            for turn in range(options.rounds + 1):
                for name, contender in running.items():
                    answer = contender.ask({"do": "calls", "rows": rows})
                    if turn > 0:  # the first turn compiles and fills caches
                        us[name] += answer
            error = running["turret"].ask({"do": "error", "rows": rows})
            results.append(_result(shape, rows, us, error, options))
    return results


def _result(
    shape: tuple[int, int], rows: int, us: dict[str, list[float]], error: float, options: argparse.Namespace
) -> dict[str, Any]:
    ours, theirs = (statistics.median(us[name]) for name in ("turret", "numpy"))
    fast = [float(np.quantile(us[name], 0.1)) for name in ("turret", "numpy")]
    mark = None if options.resident or options.vjp else MARKS.get(rows)
    return {
        "outs": shape[0],
        "ins": shape[1],
        "rows": rows,
        "block": options.block,
        "scales": options.scales,
        "resident": options.resident,
        "vjp": options.vjp,
        "turret_us": ours,
        "numpy_us": theirs,
        "numpy_over_turret": theirs / ours,
        "turret_fast_us": fast[0],
        "numpy_fast_us": fast[1],
        "undisturbed": fast[1] / fast[0],
        "error": error,
        "mark": mark,
        "reached": None if mark is None else theirs / ours >= mark,
        "samples": [len(us[name]) for name in ("turret", "numpy")],
    }


def worker(name: str, shape: tuple[int, int], options: argparse.Namespace) -> Callable[[dict[str, Any]], Any]:
    """One side, with its weights made."""
    draw = np.random.default_rng(0)
    copies = 1 if options.resident else max(1, STREAMED // (4 * shape[0] * shape[1]))
    weight = draw.standard_normal(shape).astype(np.float32)
    call, put, truth = (_turret if name == "turret" else _numpy)(weight, copies, options)
    width = shape[0] if options.vjp else shape[1]
    turn = 0

    def answer(request: dict[str, Any]) -> Any:
        nonlocal turn
        x = np.random.default_rng(request["rows"]).standard_normal((request["rows"], width)).astype(np.float32)
        if request["do"] == "error":
            want = x.astype(np.float64) @ (truth if options.vjp else truth.T)
            return float(np.abs(call(put(x), 0) - want).max() / np.abs(want).max())
        us: list[float] = []
        placed = put(x)
        warm, end = time.perf_counter() + TURN_S / 3, time.perf_counter() + TURN_S * 4 / 3
        while (began := time.perf_counter()) < end or len(us) < 3:
            call(placed, turn % copies)
            turn += 1
            if began > warm:
                us.append((time.perf_counter() - began) * 1e6)
        return us

    return answer


def _numpy(weight: X, copies: int, options: argparse.Namespace) -> tuple[Call, Put, X]:
    """What is called, what places its input beforehand, and the weight in float64."""
    weights = [weight.copy() for _ in range(copies)]
    call: Call = (lambda dy, i: dy @ weights[i]) if options.vjp else (lambda x, i: x @ weights[i].T)
    return call, np.copy, weight.astype(np.float64)


def _turret(weight: X, copies: int, options: argparse.Namespace) -> tuple[Call, Put, X]:
    from dataclasses import replace

    from turret.registry import open_backend

    tools = open_backend(options.backend).tools
    slot, put, get = tools.quantized_linear, tools.storage.from_host, tools.storage.to_host
    packed = slot.pack(put(weight), block=options.block, scales=options.scales)
    codes = get(packed.codes)
    weights = [replace(packed, codes=put(codes)) for _ in range(copies)]

    def call(x: X, i: int) -> X:
        made: X = slot.linear_vjp_input(x, weights[i]) if options.vjp else slot.linear(x, weights[i], None)
        tools.storage.synchronize(made)
        return made

    return call, put, get(slot.unpack(packed)).astype(np.float64)


if __name__ == "__main__":
    main()
