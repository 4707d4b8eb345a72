"""Cases of the paged attention slot."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from turret.spi import FLOATS, HALVES, DType, Host

from ..bench import Bench
from ..case import Body, Case, call_case
from ..given import Call, Draw, Given, View
from ..oracle import attention
from ..oracle import paged_attention as oracle
from ..tracked import Tracked
from .naming import SHORT

STALE = (np.nan, np.inf, -np.inf, 1e30, 0.0)
"""What rows hold that belong to nobody, or to nobody yet."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One call: T new queries for each request, which stands at its own start.

    spare: how much wider the page table is than its longest request needs; those entries point at page 0. shared: the
    second request begins with the first one's full pages.
    """

    starts: tuple[int, ...]
    queries: int
    heads: int
    kv_heads: int
    size: int
    page: int
    spare: int = 0
    shared: bool = False

    @property
    def scale(self) -> float:
        return float(self.size**-0.5)

    def __str__(self) -> str:
        starts = "_".join(map(str, self.starts)) or "none"
        words = f"T{self.queries}-H{self.heads}-K{self.kv_heads}-d{self.size}-p{self.page}-at{starts}"
        return words + (f"-spare{self.spare}" if self.spare else "") + ("-shared" if self.shared else "")


ASKED = (
    Asked((0,), 1, 1, 1, 1, 1),
    Asked((0, 0, 0), 1, 2, 2, 8, 2),
    Asked((6,), 1, 4, 2, 8, 1),
    Asked((0, 3, 4, 7), 1, 4, 2, 8, 2),
    Asked((15, 16, 17, 0, 31), 1, 8, 2, 32, 16),
    Asked((5, 0, 33), 1, 4, 1, 31, 16, spare=2),
    Asked((1, 12), 1, 2, 2, 65, 4, spare=5),
    Asked((63, 64, 65), 1, 2, 1, 64, 16),
    Asked((0, 5), 4, 4, 2, 8, 2),
    Asked((0,), 33, 4, 2, 16, 16),
    Asked((3, 14, 0), 5, 6, 2, 8, 4, spare=3),
    Asked((130,), 2, 2, 1, 8, 1, spare=1),
    Asked((9, 9), 1, 4, 2, 8, 4, shared=True),
    Asked((8, 11), 3, 4, 2, 8, 4, spare=1, shared=True),
    Asked((2, 129), 1, 2, 1, 8, 16, spare=7),
    Asked((1, 2), 0, 2, 1, 8, 4),
    Asked((), 1, 2, 1, 8, 4),
)
NARROW = (Asked((0, 20, 7), 1, 4, 2, 16, 4, spare=2), Asked((3, 0), 3, 4, 1, 8, 2, spare=1))
VIEWED = Asked((5, 0, 9), 2, 4, 2, 8, 4, spare=1)
APPENDED = {
    "one-row": ([5], 16, 2, 8),
    "unordered": ([13, 4, 9, 22, 5], 24, 2, 8),
    "all-rows-backwards": (list(range(11, -1, -1)), 12, 1, 3),
    "into-page-0": ([1, 17, 3, 0], 20, 2, 5),
    "last-row": ([0, 65], 66, 4, 33),
    "size-1": ([2, 1], 4, 1, 1),
    "wide-rows": ([70, 3, 129], 130, 8, 64),
    "many-rows": (list(range(4, 300, 2)), 300, 1, 8),
    "no-row": ([], 8, 2, 4),
}
PAGE = 4  # of the pools that rows are appended to


def cases() -> Iterator[Case]:
    """Rows appended exactly, requests attended through shuffled pages with poison all around, decode step by step."""
    for asked in ASKED:
        yield _attend(asked)
    for asked in NARROW:
        for dtype in sorted(HALVES):
            yield _attend(asked, dtype)
    yield _attend(VIEWED, "float64")
    for view in ("transposed", "strided", "offset"):
        yield _attend(VIEWED, view=view)
    for scale, name in ((100.0, "scale-100"), (0.0, "scale-0"), (-1.0, "scale-negative")):
        yield _attend(VIEWED, scale=scale, name=name)
    for asked in (Asked((7,), 3, 4, 2, 8, 4, spare=2), Asked((0,), 9, 2, 1, 16, 2), Asked((64,), 1, 4, 4, 8, 16)):
        yield Case(id=f"paged_attention/as-causal/{asked}-f32", body=_as_causal(asked), kind="forward")
    for name, (slots, rows, heads, size) in APPENDED.items():
        for donate in (False, True):
            yield _append(name, slots, (rows, heads, size), donate=donate)
    for dtype in sorted(FLOATS - {"float32"}):
        slots, rows, heads, size = APPENDED["unordered"]
        for donate in (False, True):
            yield _append("unordered", slots, (rows, heads, size), donate=donate, dtype=dtype)
    for donate in (False, True):
        word = "donated" if donate else "kept"
        yield Case(id=f"paged_attention/append/page-0-many-times-{word}", body=_padding(donate), kind="forward")
        yield Case(id=f"paged_attention/append/not-finite-{word}", body=_not_finite(donate), kind="forward")
    for chunk in (1, 3):
        yield Case(id=f"paged_attention/decode/chunks-of-{chunk}", body=_decode(chunk), kind="forward")


def _attend(
    asked: Asked, dtype: DType = "float32", view: View = "whole", scale: float | None = None, name: str = ""
) -> Case:
    check = "views" if view != "whole" else "extremes" if name else "sizes" if dtype == "float32" else "halves"
    tail = ("" if view == "whole" else f"-{view}") + (f"-{name}" if name else "") + f"-{SHORT[dtype]}"

    def build(draw: Draw) -> Call:
        inputs = _inputs(draw, asked, dtype, view)
        options = {"page": asked.page, "scale": asked.scale if scale is None else scale}
        return Call("paged_attention", "attend", inputs, options)

    check = "sizes" if dtype == "float64" else check
    return call_case(f"paged_attention/{check}/{asked}{tail}", build, oracle.attend)


def _inputs(
    draw: Draw, asked: Asked, dtype: DType = "float32", view: View = "whole"
) -> tuple[Given, Given, Given, Given, Given]:
    """q, both pools, page table, starts: live rows are normal, every other row is stale."""
    requests, lengths = len(asked.starts), [start + asked.queries for start in asked.starts]
    needed = [-(-length // asked.page) for length in lengths]
    pages = draw.rng.permutation(np.arange(1, sum(needed) + 3))
    table = np.zeros((requests, max([1, *needed]) + asked.spare), np.int32)
    taken = 0
    for request, count in enumerate(needed):
        table[request, :count] = pages[taken : taken + count]
        taken += count
    if asked.shared:
        full = min(asked.starts) // asked.page
        table[1, :full] = table[0, :full]
    rows = _live_rows(table, lengths, asked.page)
    pools = []
    for _ in range(2):
        pool = draw.rng.choice(STALE, size=(len(pages) * asked.page + asked.page, asked.kv_heads, asked.size))
        pool[rows] = draw.rng.standard_normal((len(rows), asked.kv_heads, asked.size))
        pools.append(draw.of(pool, dtype, view))
    q = draw.normal(requests, asked.queries, asked.heads, asked.size, dtype=dtype, view=view)
    return q, pools[0], pools[1], draw.of(table, "int32"), draw.of(np.array(asked.starts, np.int32), "int32")


def _live_rows(table: Host, lengths: list[int], page: int) -> list[int]:
    return sorted(
        {
            int(table[request, place // page]) * page + place % page
            for request, length in enumerate(lengths)
            for place in range(length)
        }
    )


def _as_causal(asked: Asked) -> Body:
    """One request over scattered pages is causal attention over its keys in order."""

    def body(bench: Bench) -> None:
        inputs = _inputs(bench.draw, asked)
        q, k_pages, v_pages, table, starts = inputs
        placed = [bench.put(x) for x in inputs]
        bench.context = "paged_attention.attend beside causal attention"
        got = bench.tools.paged_attention.attend(
            placed[0], placed[1], placed[2], placed[3], placed[4], page=asked.page, scale=asked.scale
        )
        length = asked.starts[0] + asked.queries
        rows = [int(table.host[0, place // asked.page]) * asked.page + place % asked.page for place in range(length)]
        k, v = (Given(x.host[rows][None], x.dtype).tracked for x in (k_pages, v_pages))
        want = attention.attend(q.tracked, k, v, scale=asked.scale, offset=int(starts.host[0]))[0]
        bench.close("out", got, want)

    return body


def _append(
    name: str, slots: list[int], shape: tuple[int, int, int], *, donate: bool, dtype: DType = "float32"
) -> Case:
    def body(bench: Bench) -> None:
        pools = [bench.draw.normal(*shape, dtype=dtype) for _ in range(2)]
        rows = [bench.draw.normal(len(slots), *shape[1:], dtype=dtype) for _ in range(2)]
        _appended(bench, pools, rows, slots, donate)

    word = "donated" if donate else "kept"
    return Case(id=f"paged_attention/append/{name}-{word}-{SHORT[dtype]}", body=body, kind="forward")


def _appended(
    bench: Bench, pools: list[Given], rows: list[Given], slots: list[int], donate: bool, first: int = 0
) -> None:
    """Both pools are exactly the old ones with the rows in place, from row `first` on."""
    at = bench.draw.of(np.array(slots, np.int32), "int32")
    k_pages, v_pages, k, v, where = (bench.put(x) for x in (*pools, *rows, at))
    if donate:
        bench.donates(k_pages, v_pages)
    bench.context = f"paged_attention.append to {pools[0].shape} at {slots}, donate={donate}"
    got = bench.tools.paged_attention.append(k_pages, v_pages, k, v, where, donate=donate)
    bench.require(len(got) == 2, f"got {len(got)} results, wanted both pools")
    for label, pool, result, new in zip("kv", pools, got, rows, strict=True):
        want = pool.host.copy()
        want[slots] = new.host
        host, dtype = bench.get(result), bench.tools.storage.dtype_of(result)
        bench.require(
            dtype == pool.dtype and host.shape == want.shape,
            f"pool of {label}: got {dtype} {host.shape}, wanted {pool.dtype} {want.shape}",
        )
        bench.same(f"pool of {label}", host[first:], want[first:])


def _padding(donate: bool) -> Body:
    """Slots may repeat within page 0, whose rows are worth nothing; every other row is exact."""

    def body(bench: Bench) -> None:
        slots = [0, 9, 0, 3, 3, 6, 0, 3]
        pools = [bench.draw.normal(12, 2, 4) for _ in range(2)]
        rows = [bench.draw.normal(len(slots), 2, 4) for _ in range(2)]
        _appended(bench, pools, rows, slots, donate, first=PAGE)

    return body


def _not_finite(donate: bool) -> Body:
    """A copy is a copy, whatever the value: in the pools and in the rows."""

    def body(bench: Bench) -> None:
        values = (np.nan, np.inf, -np.inf, -0.0, 3e38)
        pools = [bench.draw.of(bench.draw.rng.choice(values, size=(12, 2, 4))) for _ in range(2)]
        rows = [bench.draw.of(bench.draw.rng.choice(values, size=(3, 2, 4))) for _ in range(2)]
        _appended(bench, pools, rows, [7, 4, 11], donate)

    return body


def _decode(chunk: int) -> Body:
    """A sequence fed piece by piece through donated pools gets what one causal pass over it gives."""
    length, asked = 9, Asked((0,), chunk, 4, 2, 8, 2, spare=2)

    def body(bench: Bench) -> None:
        draw, slot, storage = bench.draw, bench.tools.paged_attention, bench.tools.storage
        q = draw.normal(1, length, asked.heads, asked.size)
        k, v = (draw.normal(1, length, asked.kv_heads, asked.size) for _ in range(2))
        pages = draw.rng.permutation(np.arange(1, 8))[: -(-length // asked.page)]
        table = bench.put(draw.of(np.concatenate([pages, [0, 0]])[None], "int32"))
        poison = np.full((8 * asked.page, asked.kv_heads, asked.size), np.nan, np.float32)
        k_pool, v_pool = storage.from_host(poison), storage.from_host(poison)
        want = attention.attend(*(x.tracked for x in (q, k, v)), scale=asked.scale, offset=0)[0]
        for start in range(0, length, chunk):
            part = slice(start, start + chunk)
            places = [int(pages[i // asked.page]) * asked.page + i % asked.page for i in range(start, start + chunk)]
            new_k, new_v = (bench.put(Given(np.ascontiguousarray(x.host[0, part]), "float32")) for x in (k, v))
            slots = bench.put(draw.of(np.array(places), "int32"))
            bench.context = f"append, then attend, from position {start}"
            k_pool, v_pool = slot.append(k_pool, v_pool, new_k, new_v, slots, donate=True)
            queries = bench.put(Given(np.ascontiguousarray(q.host[:, part]), "float32"))
            at = bench.put(draw.of(np.array([start]), "int32"))
            got = slot.attend(queries, k_pool, v_pool, table, at, page=asked.page, scale=asked.scale)
            bench.close("out", got, Tracked(want.value[:, part], want.error[:, part], want.unit))

    return body
