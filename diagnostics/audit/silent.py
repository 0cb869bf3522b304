"""Which question finds each failure that says nothing, where its entry names no families; or why none does."""

from __future__ import annotations

# Codes of `kind = "silent"`: the probes that show them.
PROBES: dict[str, tuple[str, ...]] = {
    "CFG115": ("P6", "P7"),  # all samples are the likeliest token; of a text, too
    "NUM001": ("P0", "P6"),
    "NUM002": ("P5", "P7"),
    "NUM003": ("P5",),
    "SYN001": ("P2",),
    "SYN003": ("P3",),
    "SYN015": ("P2",),
    "TOK001": ("P10",),
    "REW001": ("P12",),
    "NUM027": ("metrics", "P13"),
    "NUM041": ("P11",),
    "NUM042": ("masks",),
    "NUM043": ("P5/P8", "metrics"),
    "NUM044": ("P5/P8",),
    "NUM045": ("metrics",),
    "NUM046": ("metrics",),
    "NUM047": ("P13",),
    "CFG126": ("data",),
    "CFG127": ("samples", "metrics"),
    "CFG128": ("P13", "metrics"),
    "REW004": ("samples",),
    "REW005": ("P12",),
    "TOK018": ("samples",),
    "TOK019": ("data",),
}
# Those that no question of an audit shows.
WHY_NOT: dict[str, str] = {
    "CFG107": "options that a run does not use leave no trace in what it samples; lint reads them",
    "CFG114": "options that the command never sees leave no trace in what it samples; lint reads them",
    "MEM013": "memory is asked of the device, which an audit does not do; the log tells",
    "NUM004": "a loss divided by too much: a replay of the step shows it, and no answer of an engine or of a dump",
    "SYN002": "weights that change within a completion: no sample of an audit lies across an update",
}
