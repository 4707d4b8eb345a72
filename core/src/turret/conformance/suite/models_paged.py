"""Cases of decoding over pages: ragged requests, token by token, beside full causal attention."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from turret.spi import Host

from ..bench import Bench
from ..case import Case
from ..given import Given
from ..oracle import attention as oracle
from ..tracked import Tracked, allowance

Attend = Callable[..., Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ragged:
    """Requests of unequal length over shuffled pages. heads: query and key-value heads. prefill: tokens at once."""

    lengths: tuple[int, ...]
    heads: tuple[int, int] = (4, 2)
    size: int = 8
    page: int = 4
    prefill: tuple[int, ...] = ()
    stale: float = float("nan")

    @property
    def width(self) -> int:
        """Pages of the longest request."""
        return -(-max(self.lengths) // self.page)


RAGGED: dict[str, Ragged] = {
    "by-token": Ragged(lengths=(1, 9, 14)),
    "one-request": Ragged(lengths=(13,), heads=(3, 1), size=5),
    "page-of-one": Ragged(lengths=(5, 2), page=1, heads=(2, 2)),
    "one-page": Ragged(lengths=(16, 3, 7), page=16, heads=(8, 2), size=16),
    "exact-pages": Ragged(lengths=(8, 4, 12), page=4),
    "after-prefill": Ragged(lengths=(9, 14, 11), prefill=(6, 11, 1)),
    "stale-numbers": Ragged(lengths=(6, 11), stale=1e30),
}


def paged_cases() -> Iterator[Case]:
    """Each as written and through a compiled step whose pools are donated."""
    for name, ragged in RAGGED.items():
        yield Case(id=f"models/paged/{name}", body=partial(_decode, ragged=ragged, captured=False), kind="model")
    for name in ("by-token", "one-page"):
        body = partial(_decode, ragged=RAGGED[name], captured=True)
        yield Case(id=f"models/captured/paged-{name}", body=body, kind="model")


class _Pages:
    """Where the tokens of each request lie: pages in random order, page 0 for padding."""

    def __init__(self, bench: Bench, ragged: Ragged) -> None:
        self.ragged = ragged
        count = len(ragged.lengths) * ragged.width
        self.rows = (count + 1) * ragged.page
        shuffled = bench.draw.rng.permutation(count).astype(np.int32) + 1
        needed = -(-np.asarray(ragged.lengths) // ragged.page)
        table = shuffled.reshape(len(ragged.lengths), ragged.width)
        self.table = np.where(np.arange(ragged.width) < needed[:, None], table, 0).astype(np.int32)

    def slot(self, request: int, place: int) -> int:
        page = self.ragged.page
        return int(self.table[request, place // page]) * page + place % page


def _decode(bench: Bench, ragged: Ragged, captured: bool) -> None:
    pages = _Pages(bench, ragged)
    count, longest = len(ragged.lengths), max(ragged.lengths)
    heads, kv_heads = ragged.heads
    q = bench.draw.normal(count, longest, heads, ragged.size).host
    k, v = (bench.draw.normal(count, longest, kv_heads, ragged.size).host for _ in range(2))
    scale = ragged.size**-0.5
    want = _truth(q, k, v, scale)
    full, shape = bench.tools.storage.full, (pages.rows, kv_heads, ragged.size)
    pools = tuple(full(shape, ragged.stale, dtype="float32") for _ in range(2))
    pools = _prefill(bench, pages, pools, (q, k, v), want, scale)
    step = _step(bench, ragged, scale, captured=captured)
    done = ragged.prefill or (0,) * count
    for offset in range(longest):
        places = [start + offset for start in done]
        active = [r for r in range(count) if places[r] < ragged.lengths[r]]
        if not active:
            break
        places = [place if r in active else 0 for r, place in enumerate(places)]
        out, *written = step(
            *(_put(bench, np.stack([x[r, places[r]] for r in range(count)])) for x in (q, k, v)),
            *pools,
            _put(bench, np.asarray([pages.slot(r, places[r]) if r in active else 0 for r in range(count)], np.int32)),
            _put(bench, np.where(np.isin(np.arange(count), active)[:, None], pages.table, 0).astype(np.int32)),
            _put(bench, np.asarray(places, np.int32)),
        )
        pools = tuple(written)
        got = bench.get(out)
        for r in active:
            _beside(bench, f"request {r} at {places[r]}", got[r, 0], want[r, places[r]])


def _step(bench: Bench, ragged: Ragged, scale: float, *, captured: bool) -> Attend:
    """One token of every request: (q, k, v, both pools, slots, table, starts) to (out, both pools)."""
    slot, reshape = bench.tools.paged_attention, bench.tools.layout.reshape

    def step(q: Any, k: Any, v: Any, k_pages: Any, v_pages: Any, slots: Any, table: Any, starts: Any) -> Any:
        k_pages, v_pages = slot.append(k_pages, v_pages, k, v, slots, donate=True)
        single = reshape(q, (q.shape[0], 1, *q.shape[1:]))
        out = slot.attend(single, k_pages, v_pages, table, starts, page=ragged.page, scale=scale)
        return out, k_pages, v_pages

    return bench.tools.compile.compile(step, donate=(3, 4)) if captured else step


def _prefill(
    bench: Bench, pages: _Pages, pools: tuple[Any, ...], streams: tuple[Host, ...], want: Tracked, scale: float
) -> tuple[Any, ...]:
    """The first tokens of each request in one call, where the case has any."""
    slot = bench.tools.paged_attention
    for request, length in enumerate(pages.ragged.prefill):
        q, k, v = (_put(bench, x[request, :length]) for x in streams)
        slots = np.asarray([pages.slot(request, place) for place in range(length)], np.int32)
        pools = slot.append(pools[0], pools[1], k, v, _put(bench, slots), donate=True)
        out = slot.attend(
            bench.tools.layout.reshape(q, (1, *q.shape)),
            *pools,
            _put(bench, pages.table[request : request + 1]),
            _put(bench, np.zeros(1, np.int32)),
            page=pages.ragged.page,
            scale=scale,
        )
        _beside(bench, f"prefill of request {request}", bench.get(out)[0], want[request, :length])
    return pools


def _truth(q: Host, k: Host, v: Host, scale: float) -> Tracked:
    out: Tracked = oracle.attend(*(Given(x, "float32").tracked for x in (q, k, v)), scale=scale, offset=0)[0]
    return out


def _put(bench: Bench, host: Host) -> Any:
    dtype = "int32" if host.dtype.kind == "i" else "float32"
    return bench.put(Given(np.ascontiguousarray(host), dtype))  # type: ignore[arg-type]


def _beside(bench: Bench, label: str, got: Host, truth: Tracked) -> None:
    bench.within(label, got, truth.value, allowance(truth, "float32", flushes=bench.device.flushes_subnormals))
