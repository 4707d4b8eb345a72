"""Cases of the random slot: streams are judged by statistics whose limits lie seven deviations out."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from turret.spi import DType, Host, Shape

from ..bench import Bench
from ..case import Body, Case
from ..oracle import philox
from ..oracle.special import erf

DRAWS = 1 << 14
SIGMAS = 7.0
BINS = 64
METHODS: dict[str, DType] = {"bits": "int32", "uniform": "float32", "normal": "float32"}
SHAPES: tuple[Shape, ...] = ((), (1,), (7,), (0,), (3, 0, 2), (2, 3, 5), (1025,), (63, 65))
TOP = (1 << 64) - 1


def cases() -> Iterator[Case]:
    """Shapes and dtypes, reproducibility, independence of streams, the generator, and the three distributions."""
    for method in METHODS:
        for shape in SHAPES:
            word = "x".join(map(str, shape)) or "rank-0"
            yield Case(id=f"random/shapes/{method}-{word}", body=_shaped(method, shape), kind="forward")
        yield Case(id=f"random/same/{method}", body=_same(method), kind="forward")
        for name, one, other in _neighbours():
            yield Case(id=f"random/distinct/{method}-{name}", body=_distinct(method, one, other), kind="forward")
    for name, one, other in _neighbours():
        yield Case(id=f"random/streams/{name}", body=_apart(one, other), kind="forward")
    yield Case(id="random/streams/correlation-of-eight", body=_correlation, kind="forward")
    yield Case(id="random/streams/within-one", body=_within_one, kind="forward")
    yield Case(id="random/streams/across-shapes-of-one-key", body=_few_each, kind="forward")
    yield Case(id="random/bits/every-bit", body=_every_bit, kind="forward")
    yield Case(id="random/bits/pairs-of-bits", body=_bit_pairs, kind="forward")
    yield Case(id="random/uniform/range-and-moments", body=_uniform, kind="forward")
    yield Case(id="random/uniform/chi-square", body=_uniform_bins, kind="forward")
    yield Case(id="random/uniform/one-at-a-time", body=_uniform_alone, kind="forward")
    for method in ("bits", "uniform"):
        for name, key, counter in (("small", 5, 7), ("greatest", TOP, TOP), ("high-halves", 3 << 40, 9 << 50)):
            yield Case(id=f"random/words/{method}-{name}", body=_words(method, key, counter), kind="forward")
    yield Case(id="random/normal/moments", body=_normal, kind="forward")
    yield Case(id="random/normal/chi-square", body=_normal_bins, kind="forward")
    yield Case(id="random/normal/pairs", body=_normal_pairs, kind="forward")


def _neighbours() -> list[tuple[str, tuple[int, int], tuple[int, int]]]:
    """Names and two (key, counter) that careless seeding confuses."""
    return [
        ("next-counter", (5, 7), (5, 8)),
        ("next-key", (5, 7), (6, 7)),
        ("swapped", (5, 7), (7, 5)),
        ("same-sum", (5, 7), (6, 6)),
        ("zero", (0, 0), (0, 1)),
        ("high-half-of-key", (5, 7), (5 + (1 << 32), 7)),
        ("high-half-of-counter", (5, 7), (5, 7 + (1 << 32))),
        ("greatest-key", (TOP, 0), (TOP - 1, 0)),
        ("greatest-counter", (0, TOP), (0, TOP - 1)),
        ("greatest-both", (TOP, TOP), (0, 0)),
        ("sign-of-key", (1, 3), ((1 << 63) + 1, 3)),
    ]


def _draw(bench: Bench, method: str, shape: Shape, key: int, counter: int) -> Host:
    """Values on the host, once type, shape and dtype are right."""
    bench.context = f"random.{method}({shape}, key={key}, counter={counter})"
    array = getattr(bench.tools.random, method)(shape, key=key, counter=counter)
    host, dtype = bench.get(array), bench.tools.storage.dtype_of(array)
    bench.require(
        tuple(array.shape) == shape and host.shape == shape and dtype == METHODS[method],
        f"got {dtype} {tuple(array.shape)}, wanted {METHODS[method]} {shape}",
    )
    return host


def _stream(bench: Bench) -> tuple[int, int]:
    """A key and a counter of 64 bits that hang on the run's seed."""
    key, counter = (int(x) for x in bench.draw.rng.integers(0, TOP, size=2, dtype=np.uint64))
    return key, counter


def _shaped(method: str, shape: Shape) -> Body:
    def body(bench: Bench) -> None:
        values = _draw(bench, method, shape, *_stream(bench))
        if method == "uniform":
            bench.require(((values >= 0) & (values < 1)).all(), "a value outside [0, 1)")
        bench.require(np.isfinite(values).all(), "a value that is not finite")
        bench.require(values.size < 1000 or len(np.unique(values)) > 0.99 * values.size, "the values repeat themselves")

    return body


def _same(method: str) -> Body:
    """The values hang on key, counter and shape alone, whatever was drawn in between; each array is a new one."""

    def body(bench: Bench) -> None:
        key, counter = _stream(bench)
        first = _draw(bench, method, (65, 3), key, counter)
        for between in METHODS:
            _draw(bench, between, (130,), key, counter)
            _draw(bench, between, (3,), key ^ 1, counter)
        bench.same("the same call again", _draw(bench, method, (65, 3), key, counter), first)

    return body


def _words(method: str, key: int, counter: int) -> Body:
    """The words of Philox, so that a seed means the same masks on every backend; also of an odd count."""

    def body(bench: Bench) -> None:
        for shape in ((), (33,), (7, 5)):
            got = _draw(bench, method, shape, key, counter)
            bench.same(f"{method} of shape {shape}", got, getattr(philox, method)(shape, key=key, counter=counter))

    return body


def _distinct(method: str, one: tuple[int, int], other: tuple[int, int]) -> Body:
    def body(bench: Bench) -> None:
        a, b = (_draw(bench, method, (257,), *stream) for stream in (one, other))
        equal = int((a == b).sum())
        bench.require(equal < 8, f"{equal} of 257 values are those of key={one[0]}, counter={one[1]}")

    return body


def _apart(one: tuple[int, int], other: tuple[int, int]) -> Body:
    """Two streams do not overlap at any shift, and every bit of one is independent of the same bit of the other."""

    def body(bench: Bench) -> None:
        a, b = (_draw(bench, "bits", (DRAWS,), *stream) for stream in (one, other))
        common = len(np.intersect1d(a, b))  # 2^28 pairs of 2^32 values: 0.06 in the mean
        bench.require(common < 8, f"{common} of {DRAWS} values occur in the stream of {one} as well: they overlap")
        agree = (~(_as_bits(a) ^ _as_bits(b)) & 1).mean(axis=0)
        _near(bench, "agreement of each of 32 bits", agree, 0.5, 0.5)

    return body


def _near(bench: Bench, label: str, got: Any, want: float, deviation: float, count: int = DRAWS) -> None:
    """A mean of `count` values of that deviation."""
    got = np.asarray(got, np.float64)
    bench.within(label, got, np.full(got.shape, want), SIGMAS * deviation / math.sqrt(count), "float64")


def _as_bits(values: Host) -> Host:
    """(n,) int32 to 0 and 1: (n, 32)."""
    return (values.view(np.uint32)[:, None] >> np.arange(32, dtype=np.uint32)) & 1


def _correlation(bench: Bench) -> None:
    """Neighbouring keys and counters, in uniform and in normal values."""
    key, counter = _stream(bench)
    key, counter = key >> 1, counter >> 1
    for method, deviation in (("uniform", 1 / 12), ("normal", 1.0)):
        middle = 0.5 if method == "uniform" else 0.0
        rows = [_draw(bench, method, (DRAWS,), key + n // 4, counter + n % 4) - middle for n in range(8)]
        products = np.array([(a * b).mean(dtype=np.float64) for n, a in enumerate(rows) for b in rows[:n]])
        _near(bench, f"correlation of {method} streams", products, 0.0, deviation)


def _within_one(bench: Bench) -> None:
    """Values at small distances within one stream."""
    values = _draw(bench, "uniform", (DRAWS,), *_stream(bench)).astype(np.float64) - 0.5
    for lag in (1, 2, 3, 4, 8, 32, 64, 1024):
        count = DRAWS - lag
        _near(bench, f"correlation at distance {lag}", (values[lag:] * values[:-lag]).mean(), 0.0, 1 / 12, count)


def _few_each(bench: Bench) -> None:
    """One value of each of many counters, as a program draws that uses a new counter for every step."""
    key, counter = _stream(bench)
    counter >>= 1
    values = np.array([_draw(bench, "uniform", (2,), key, counter + n) for n in range(256)], np.float64)
    _near(bench, "mean over counters", values.mean(axis=0), 0.5, math.sqrt(1 / 12), 256)
    _near(bench, "variance over counters", ((values - 0.5) ** 2).mean(axis=0), 1 / 12, math.sqrt(1 / 180), 256)
    shifted = (values[1:, 0] - 0.5) * (values[:-1, 0] - 0.5)
    _near(bench, "correlation over counters", shifted.mean(), 0.0, 1 / 12, 255)


def _every_bit(bench: Bench) -> None:
    values = _draw(bench, "bits", (DRAWS,), *_stream(bench))
    _near(bench, "mean of each of 32 bits", _as_bits(values).mean(axis=0), 0.5, 0.5)
    repeated = DRAWS - len(np.unique(values))  # 0.03 in the mean
    bench.require(repeated < 8, f"{repeated} of {DRAWS} values of 32 bits occur twice")


def _bit_pairs(bench: Bench) -> None:
    """No bit tells about another one of its word, or about itself in the next word."""
    count = DRAWS // 4
    words = _draw(bench, "bits", (count + 1,), *_stream(bench)).view(np.uint32)
    for distance in range(1, 32):
        differ = _as_bits(words[1:] ^ (words[1:] >> distance))[:, : 32 - distance].mean(axis=0)
        _near(bench, f"bits {distance} apart in a word", differ, 0.5, 0.5, count)
    _near(bench, "bits of the next word", _as_bits(words[1:] ^ words[:-1]).mean(axis=0), 0.5, 0.5, count)


def _uniform(bench: Bench) -> None:
    values = _draw(bench, "uniform", (DRAWS,), *_stream(bench)).astype(np.float64)
    bench.require(((values >= 0) & (values < 1)).all(), "a value outside [0, 1)")
    _near(bench, "mean", values.mean(), 0.5, math.sqrt(1 / 12))
    _near(bench, "variance", ((values - 0.5) ** 2).mean(), 1 / 12, math.sqrt(1 / 180))
    repeated = DRAWS - len(np.unique(values))  # 16 in the mean with 23 bits, 2000 with 16
    bench.require(repeated < 64, f"{repeated} of {DRAWS} values occur twice: fewer than 23 bits are random")


def _uniform_bins(bench: Bench) -> None:
    values = _draw(bench, "uniform", (DRAWS,), *_stream(bench)).astype(np.float64)
    _even(bench, "bins of [0, 1)", values)
    # what is left once the first six bits are gone
    _even(bench, "bins within bins", values * BINS % 1)
    _even(bench, "bins within those", values * BINS**2 % 1)


def _even(bench: Bench, label: str, values: Host) -> None:
    """Pearson's statistic over equally likely bins; it is about normal with variance 2 (bins - 1)."""
    counts = np.bincount(np.minimum((values * BINS).astype(np.int64), BINS - 1), minlength=BINS)
    expected = values.size / BINS
    statistic = np.sum((counts - expected) ** 2) / expected
    degrees = BINS - 1
    # Wilson and Hilferty 1931: the cube root is nearer to normal than the statistic itself
    score = ((statistic / degrees) ** (1 / 3) - (1 - 2 / (9 * degrees))) / math.sqrt(2 / (9 * degrees))
    bench.within(f"{label}: deviations of chi-square", np.asarray(score), np.asarray(0.0), SIGMAS, "float64")


def _normal(bench: Bench) -> None:
    values = _draw(bench, "normal", (DRAWS,), *_stream(bench)).astype(np.float64)
    bench.require(np.isfinite(values).all(), "a value that is not finite")
    # the deviation of x^k is sqrt(E x^2k - (E x^k)^2)
    for power, mean, deviation in ((1, 0.0, 1.0), (2, 1.0, 2**0.5), (3, 0.0, 15**0.5), (4, 3.0, 96**0.5)):
        _near(bench, f"mean of x^{power}", (values**power).mean(), mean, deviation)
    for limit in (1.0, 2.0, 2.5):
        share = 1 - float(erf(np.asarray(limit / math.sqrt(2))))
        deviation = math.sqrt(share * (1 - share))
        _near(bench, f"share beyond {limit} deviations", (np.abs(values) > limit).mean(), share, deviation)
    greatest = float(np.abs(values).max())
    bench.require(3 < greatest < 8, f"the greatest of {DRAWS} magnitudes is {greatest}, wanted 3 to 8")


def _normal_bins(bench: Bench) -> None:
    values = _draw(bench, "normal", (DRAWS,), *_stream(bench)).astype(np.float64)
    _even(bench, "bins of equal probability", (1 + np.asarray(erf(values / math.sqrt(2)))) / 2)


def _normal_pairs(bench: Bench) -> None:
    """Neighbours are independent also in their squares, and over the halves that a pairwise method makes."""
    values = _draw(bench, "normal", (DRAWS,), *_stream(bench)).astype(np.float64)
    half = DRAWS // 2
    for name, a, b in (
        ("neighbours", values[0::2], values[1::2]),
        ("the halves", values[:half], values[half:]),
        ("what follows", values[1:-1:2], values[2::2]),
    ):
        _near(bench, f"correlation of {name}", (a * b).mean(), 0.0, 1.0, a.size)
        _near(bench, f"correlation of squares of {name}", ((a * a - 1) * (b * b - 1)).mean(), 0.0, 2.0, a.size)


def _uniform_alone(bench: Bench) -> None:
    """Draws of one element over counters are uniform together, and so is every second one."""
    count = 1024
    drawn = [bench.get(bench.tools.random.uniform((1,), key=3, counter=counter))[0] for counter in range(count)]
    values = np.array(drawn, np.float64)
    for name, part in (("all", values), ("even counters", values[::2]), ("odd counters", values[1::2])):
        limit = SIGMAS / math.sqrt(12 * part.size)
        off = abs(float(part.mean()) - 0.5)
        bench.require(off <= limit, f"{name}: the mean is off by {off:.3f}, wanted at most {limit:.3f}")
