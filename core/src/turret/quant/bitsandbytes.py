"""NF4 weights under the names and in the bytes of bitsandbytes, without it, torch or a GPU.

A weight named X is X (its bytes, whatever their dtype), X.absmax, X.quant_map, X.quant_state.bitsandbytes__nf4 (JSON as
uint8) and, with scales that are quantized themselves, X.nested_absmax and X.nested_quant_map.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from turret.derived.quantized_linear import GROUP, dynamic_levels
from turret.files import strict_json
from turret.registry import OpenBackend, open_backend
from turret.spi import NF4_LEVELS, CheckpointError, ConfigError, Host, ScaleCode, ShapeError, TurretError, Unsupported
from turret.tensor.ops.quantized import packed_shape

from .array_files import ArrayFile, open_arrays, write_arrays
from .names import STATE, require_weights
from .weight import ZERO, PackedWeight

ComputeDType = Literal["float32", "float16", "bfloat16"]
PARTS = ("absmax", "quant_map", "nested_absmax", "nested_quant_map")
LARGEST = float(np.finfo(np.float32).max)
ROUNDING = 2.0**-22
"""Two makers of the dynamic map differ by a rounding or two: a relative distance below this is the same map."""


def weight_names(names: Iterable[str]) -> list[str]:
    """The names of the 4-bit weights among the names of a checkpoint, of whichever kind, in order."""
    return [name.partition(f".{STATE}")[0] for name in names if f".{STATE}" in name]


def read_weight(arrays: Mapping[str, Host], name: str, *, backend: str | OpenBackend | None = None) -> PackedWeight:
    """The weight `name` ("model.layers.0.mlp.up_proj.weight") of a checkpoint, bit for bit what bitsandbytes decodes.

    Where the nested map is the dynamic map in another rounding than ours the scales become float32 ones, so that the
    weight is still the same bits; it takes 4.5 bits a value then.
    Raises: Unsupported for another kind than NF4, another map or nested block size; CheckpointError for what is
    missing, malformed or does not fit.
    """
    state = _state(arrays, name)
    shape, block = state["shape"], state["blocksize"]
    _require_map(name, "quant_map", _part(arrays, name, "quant_map"), np.array(NF4_LEVELS, np.float32), 0.0)
    parts: dict[str, Host] = {"codes": _codes(arrays, name, math.prod(shape))}
    scale_code: ScaleCode = "float32"
    if _is_nested(arrays, name, state):
        scale_code, scales = _nested(arrays, name, state)
        parts |= scales
    else:
        parts["scales"] = _part(arrays, name, "absmax").reshape(-1)
    try:
        return PackedWeight.from_arrays(parts, shape=shape, block=block, scale_code=scale_code, backend=backend)
    except TurretError as error:
        raise CheckpointError(f"{name}: {error}") from error


def write_weight(name: str, weight: PackedWeight, *, dtype: ComputeDType = "float32") -> dict[str, Host]:
    """The arrays of a weight under the names of bitsandbytes. dtype: what it unpacks to there.

    Raises: Unsupported for "linear" scales, which bitsandbytes does not have; ConfigError for another dtype, for a name
    that no file can hold and for a value that is no packed weight.
    """
    require_weights({name: weight})
    if weight.scale_code == "linear":
        raise Unsupported(
            f"{name}: bitsandbytes has no 'linear' scales; pack with scales='dynamic', or weight.unpack() first"
        )
    if dtype not in get_args(ComputeDType):
        raise ConfigError(f"{name}: got dtype {dtype!r}; wanted one of {', '.join(get_args(ComputeDType))}")
    parts = weight.arrays()
    state: dict[str, Any] = {"quant_type": "nf4", "blocksize": weight.block, "dtype": dtype}
    state["shape"] = list(weight.shape)
    made = {
        name: parts["codes"].reshape(-1, 1),
        f"{name}.absmax": parts["scales"],
        f"{name}.quant_map": np.array(NF4_LEVELS, np.float32),
    }
    if weight.scale_code == "dynamic":
        made[f"{name}.nested_absmax"] = parts["group_scales"]
        made[f"{name}.nested_quant_map"] = dynamic_levels()
        state |= {"nested_blocksize": GROUP, "nested_dtype": "float32", "nested_offset": float(parts["offset"])}
    made[f"{name}.{STATE}nf4"] = np.frombuffer(json.dumps(state).encode(), np.uint8)
    return made


def load(path: Path | str, *, backend: str | OpenBackend | None = None) -> dict[str, PackedWeight]:
    """Every 4-bit weight of a safetensors file by its name; other arrays stay unread.

    Raises: as `read_weight`, naming the file.
    """
    path, target = Path(path), open_backend(backend)
    with open_arrays(path) as file:
        try:
            return {name: read_weight(file, name, backend=target) for name in weight_names(file)}
        except (CheckpointError, Unsupported) as error:
            raise type(error)(f"{path}: {error}") from error


def save(path: Path | str, weights: Mapping[str, PackedWeight], *, dtype: ComputeDType = "float32") -> None:
    """Writes the weights to a safetensors file as bitsandbytes names them.

    Raises: as `write_weight`; ConfigError for two weights that need the same name in the file; CheckpointError, with
    what was at `path` as it was.
    """
    require_weights(weights)
    for name in weights:
        other, _, part = name.rpartition(".")
        if part in PARTS and other in weights:
            raise ConfigError(
                f"weights {other:.80} and {name:.80}: {part} of the first is stored under the name of the second; "
                f"rename one, or write two files"
            )
    arrays: dict[str, Host] = {}
    for name, weight in weights.items():
        arrays |= write_weight(name, weight, dtype=dtype)
    write_arrays(Path(path), arrays, {"format": "pt"})


def _part(arrays: Mapping[str, Host], name: str, part: str) -> Host:
    key = f"{name}.{part}" if part else name
    if key not in arrays:
        raise CheckpointError(f"{name}: no array {key!r}; wanted the whole checkpoint of the weight")
    array = arrays[key]
    if not isinstance(array, np.ndarray):
        raise CheckpointError(f"{name}: {key!r} is {type(array).__name__}; wanted a NumPy array")
    return array


def _state(arrays: Mapping[str, Host], name: str) -> dict[str, Any]:
    """The checked quant state."""
    if f"{name}.{STATE}nf4" not in arrays:
        kinds = [key.rpartition("__")[2] for key in arrays if key.startswith(f"{name}.{STATE}")]
        if kinds:
            raise Unsupported(f"{name}: 4-bit values of kind {kinds[0]!r:.40}; wanted nf4: make the checkpoint anew")
    raw = _part(arrays, name, f"{STATE}nf4")
    if raw.dtype != np.uint8:
        raise CheckpointError(f"{name}: its quant state is stored as {raw.dtype}; wanted uint8")
    try:
        state = strict_json(raw.tobytes())
    except ValueError as error:
        raise CheckpointError(f"{name}: its quant state is not valid JSON ({error!s:.80})") from error
    if not isinstance(state, dict):
        raise CheckpointError(f"{name}: its quant state is {type(state).__name__}; wanted a mapping")
    for key, kind in {"quant_type": str, "blocksize": int, "shape": list}.items():
        if type(state.get(key)) is not kind:
            raise CheckpointError(
                f"{name}: {key!r} of its quant state is {state.get(key)!r:.80}; wanted {kind.__name__}"
            )
    if state["quant_type"] != "nf4":
        raise Unsupported(f"{name}: 4-bit values of kind {state['quant_type']!r:.40}; wanted nf4")
    try:
        state["shape"] = packed_shape(state["shape"])
    except ShapeError as error:
        raise CheckpointError(f"{name}: {error}") from error
    return state


def _codes(arrays: Mapping[str, Host], name: str, count: int) -> Host:
    """The bytes of the values; what an odd number leaves in the last nibble is made the code of 0."""
    if isinstance(arrays, ArrayFile) and name in arrays:
        codes = arrays.raw(name)
    else:
        codes = np.ascontiguousarray(_part(arrays, name, "")).reshape(-1).view(np.uint8)
    if codes.size != (count + 1) // 2:
        raise CheckpointError(f"{name}: {codes.size} bytes for {count} values; wanted {(count + 1) // 2}")
    if count % 2 and codes[-1] % 16 != ZERO:
        codes = codes.copy()
        codes[-1] = codes[-1] // 16 * 16 + ZERO
    return codes


def _is_nested(arrays: Mapping[str, Host], name: str, state: Mapping[str, Any]) -> bool:
    signs = {
        f"{name}.nested_absmax": f"{name}.nested_absmax" in arrays,
        f"{name}.nested_quant_map": f"{name}.nested_quant_map" in arrays,
        "nested_blocksize": "nested_blocksize" in state,
        "nested_offset": "nested_offset" in state,
    }
    if len(set(signs.values())) > 1:
        there, missing = ([key for key, found in signs.items() if found is want] for want in (True, False))
        raise CheckpointError(f"{name}: got {', '.join(there)} and no {', '.join(missing)}; wanted all or none")
    return signs["nested_offset"]


def _nested(arrays: Mapping[str, Host], name: str, state: Mapping[str, Any]) -> tuple[ScaleCode, dict[str, Host]]:
    """The scale code and the arrays of quantized scales."""
    if state["nested_blocksize"] != GROUP:
        raise Unsupported(f"{name}: nested blocks of {state['nested_blocksize']!r:.40}; wanted {GROUP}")
    if state.get("nested_dtype", "float32") != "float32":
        raise Unsupported(f"{name}: nested dtype {state['nested_dtype']!r:.40}; wanted float32")
    number = state["nested_offset"]
    if type(number) not in (float, int) or abs(number) > LARGEST:
        raise CheckpointError(f"{name}: nested_offset {number!r:.40}; wanted a number that float32 can hold")
    codes, scales = _part(arrays, name, "absmax").reshape(-1), _part(arrays, name, "nested_absmax").reshape(-1)
    levels, own = _part(arrays, name, "nested_quant_map"), dynamic_levels()
    _require_map(name, "nested_quant_map", levels, own, ROUNDING)
    offset = np.array(number, np.float32)
    if levels.reshape(-1).tobytes() == own.tobytes():
        return "dynamic", {"scales": codes, "group_scales": scales, "offset": offset}
    if codes.dtype != np.uint8 or scales.dtype != np.float32 or scales.size != -(-codes.size // GROUP):
        raise CheckpointError(
            f"{name}: {codes.size} scales of {codes.dtype} with {scales.size} of {scales.dtype} over them; wanted "
            f"uint8, and a float32 for each {GROUP}"
        )
    with np.errstate(all="ignore"):  # what comes out infinite is refused with the array's name
        whole = levels.reshape(-1)[codes] * np.repeat(scales, GROUP)[: codes.size] + offset
    return "float32", {"scales": whole.astype(np.float32)}


def _require_map(name: str, part: str, got: Host, wanted: Host, rounding: float) -> None:
    flat = got.reshape(-1)
    if flat.dtype != np.float32 or flat.shape != wanted.shape:
        raise CheckpointError(f"{name}: {part} is {flat.size} values of {flat.dtype}; wanted {wanted.size} of float32")
    far = ~(np.abs(flat - wanted) <= rounding * np.abs(wanted))
    if far.any():
        place = int(np.argmax(far))
        raise Unsupported(
            f"{name}: {part}[{place}] is {float(flat[place])!r}; wanted {float(wanted[place])!r}: another map"
        )
