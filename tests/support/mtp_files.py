"""Files with MTP heads."""

from __future__ import annotations

from pathlib import Path

import gguf

from support.golden import golden

HEAD = golden("heads/tiny-mtp-head-F16.gguf")


def with_head(path: Path) -> Path:
    """The golden target with the golden head behind it, in one file."""
    trunk, block = gguf.GGUFReader(golden("tiny-F16.gguf")), gguf.GGUFReader(HEAD)
    writer = gguf.GGUFWriter(path, "qwen35")
    for field in trunk.fields.values():
        if not field.name.startswith("GGUF.") and field.name != "general.architecture":
            value = 5 if field.name == "qwen35.block_count" else field.contents()
            array = field.types[0] == gguf.GGUFValueType.ARRAY
            (writer.add_array(field.name, value) if array else writer.add_key_value(
                field.name, value, field.types[0]
            ))  # fmt: skip
    writer.add_nextn_predict_layers(1)
    for tensor in (*trunk.tensors, *block.tensors):
        writer.add_tensor(tensor.name, tensor.data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
