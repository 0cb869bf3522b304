"""`hang`: who waits for whom, over all processes of a job.

Facts are taken in `look` (the only part that touches processes) or read from other tools' dumps in `read`; both give
a `snapshot.Snapshot`, which is data and can be kept. `link` finds edges in it, `judge` makes a verdict of them (both
pure), `show` prints it.
"""
