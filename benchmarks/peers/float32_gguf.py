"""A GGUF file with the float32 weights that another one stands for: llama.cpp then computes with the same numbers."""

from __future__ import annotations

from pathlib import Path

import gguf

from turret.models.weights.gguf_file import GgufFile


def write_float32(source: Path, target: Path) -> Path:
    """Copies everything of `source`, tensors as float32."""
    reader = gguf.GGUFReader(source)
    with GgufFile(source) as file:
        writer = gguf.GGUFWriter(target, str(file.metadata["general.architecture"]))
        for name, field in reader.fields.items():
            if name.startswith("GGUF.") or name in ("general.architecture", "general.file_type"):
                continue
            kind, *inner = field.types
            writer.add_key_value(name, field.contents(), kind, sub_type=inner[-1] if inner else None)
        writer.add_file_type(gguf.LlamaFileType.ALL_F32)
        for name in file.names():
            writer.add_tensor(name, file.read(name))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    return target
