"""What a stream's first bytes say: a packed log, a file of another kind, or text."""

from __future__ import annotations

import codecs
import re

_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
ZIP = b"PK\x03\x04"
# Known by their first bytes and not read, each with the words that help.
_UNREAD = {
    b"\x28\xb5\x2f\xfd": "zstd, which Python before 3.14 does not unpack by itself: pip install backports.zstd, or"
    " `zstd -dc FILE | grpo-doctor triage -`",
    b"\x04\x22\x4d\x18": "LZ4, which is not unpacked here: `lz4 -dc FILE | grpo-doctor triage -`",
    b"7z\xbc\xaf\x27\x1c": "a 7z archive, which is not unpacked here: unpack it, and name the folder",
    b"Rar!\x1a\x07": "a RAR archive, which is not unpacked here: unpack it, and name the folder",
    b"PK\x05\x06": "an empty zip",
    b"\x7fELF": "a program or a core dump, no log",
    b"PAR1": "a Parquet file, no log",
    b"%PDF-": "a PDF, no log",
    b"\x89PNG": "a picture, no log",
}
# Logs all the same, which say so when they are read.
PACKED_UNREAD = (b"\x28\xb5\x2f\xfd", b"\x04\x22\x4d\x18")
_TAR = (257, b"ustar")
# So much of each block is looked at.
SAMPLE = 1 << 14
# What no program prints to a log: control characters but those that lay out, ring or colour.
_CONTROLS = bytes(number for number in (*range(32), 127) if chr(number) not in "\a\b\t\n\v\f\r\x1b")
# A file that was cut while it was written to has a hole before what came later.
_HOLE = re.compile(rb"\0{16,}")
_EVEN, _SHORTEST, _MOST_ZEROS = 512, 16, 0.6
_MOST_CONTROLS, _MOST_BROKEN = 0.02, 0.5


class NoLogError(ValueError):
    """Raised for what is no log, or can't be unpacked here; says why, without the file's name."""


def unread(head: bytes) -> str:
    """What a stream is that begins like this, where it is of a kind that is not read; else empty."""
    if head[_TAR[0] : _TAR[0] + 5] == _TAR[1]:
        return "a tar archive, which is not unpacked here: unpack it, and name the folder"
    return next((said for magic, said in _UNREAD.items() if head.startswith(magic)), "")


def utf16(head: bytes) -> str:
    r"""The encoding of a stream that begins like this, where it is UTF-16, with its mark or without; else empty.

    >>> utf16("a log\n".encode("utf-16")), utf16("a longer log\n".encode("utf-16-be")), utf16(b"a log\n")
    ('utf-16', 'utf-16-be', '')
    """
    if head[:2] in _UTF16:
        return "utf-16"
    sample = head[: len(head[:_EVEN]) & -2]
    if len(sample) < _SHORTEST or b"\0" not in sample:
        return ""
    first, second = sample[::2].count(0), sample[1::2].count(0)
    # Latin letters have a zero in one of two places, and never in the other.
    for zeros, others, name in ((second, first, "utf-16-le"), (first, second, "utf-16-be")):
        if zeros > _MOST_ZEROS * len(sample) / 2 and not others and is_text(sample.replace(b"\0", b"")):
            return name
    return ""


def is_text(data: bytes) -> bool | None:
    r"""Whether a log can begin with these bytes; None where they are all a hole.

    Any encoding is text in which the words that are looked for are plain ASCII.

    >>> is_text(b"step 1\r\n"), is_text(bytes(64) + b"step 2\n"), is_text(b"s\0t\0e\0p\0"), is_text(bytes(99))
    (True, True, False, None)
    """
    if b"\0" in data[:SAMPLE]:
        data = _HOLE.sub(b"", data)
    sample = data[:SAMPLE]
    if not sample:
        return None
    controls = len(sample) - len(sample.translate(None, _CONTROLS))
    if controls > _MOST_CONTROLS * len(sample):
        return False
    text = sample.decode("utf-8", "replace")
    return text.count("\ufffd") <= _MOST_BROKEN * len(text)
