"""Old name of `diagnostics.safe_io`; to be removed."""

from __future__ import annotations

from diagnostics import safe_io
from diagnostics.safe_io import GIB, KIB, METADATA, MIB, SOURCE

RefusedError = safe_io.UnsafeFileError
TooMuchError = safe_io.TooLargeError
WORD, LIST, STORE = safe_io.SMALL, safe_io.DOCUMENT, safe_io.ARTIFACT
MOST_TAKEN = safe_io.MAX_VALUE_BYTES
opened = safe_io.open_regular
read = safe_io.read_bytes
head = safe_io.read_head
tail = safe_io.read_tail
text = safe_io.read_text
parsed = safe_io.parse_json
parsed_toml = safe_io.parse_toml
bounded = safe_io.check_json_size
__all__ = [
    "GIB", "KIB", "LIST", "METADATA", "MIB", "MOST_TAKEN", "SOURCE", "STORE", "WORD", "RefusedError", "TooMuchError",
    "bounded", "head", "opened", "parsed", "parsed_toml", "read", "tail", "text",
]  # fmt: skip
