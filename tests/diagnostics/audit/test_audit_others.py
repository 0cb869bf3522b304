"""Only the likely ones of large checkpoints are computed completely; others are listed as not compared."""

from types import SimpleNamespace

import torch

from diagnostics.audit.live import checkpoint_identification
from diagnostics.audit.live.weight_comparison import Scores

SIZE, FLOOR = 600, 0.01


class Folder:
    """A checkpoint at a given distance from the audited one."""

    def __init__(self, name, apart=0.0, *, large=True):
        self.name, self.apart, self.large = name, apart, large
        number = name.rpartition("-")[2]
        self.step = int(number) if number.isdigit() else -1 if name == "base" else None
        self.asked = []

    def has_same_tensors(self, _other):
        return True

    def release(self):
        pass

    def scores(self, sequences, _dtype):
        self.asked.append(sum(len(ids) - 1 for ids in sequences))
        return torch.full((self.asked[-1],), self.apart)


def compared(*folders, large=True, off=FLOOR):
    """Beside checkpoint-300, from which the engine is so far off."""
    reference = Folder("checkpoint-300", large=large)
    sequences = [list(range(SIZE // 2 + 1))] * 2
    best = Scores(reference, sequences, torch.full((SIZE,), off), "bfloat16", torch.zeros(SIZE), FLOOR)
    computed, notes = checkpoint_identification._compute_others(best, folders)
    return [item.name for item, _ in computed], {observed.values["name"]: observed.name for observed in notes}


def test_what_is_far_away_is_computed_for_few_ids_and_what_is_behind_it_not_at_all():
    """The engine is within the noise floor, so a checkpoint at fifty floors is excluded."""
    tolerance, far = Folder("checkpoint-280", 0.5), Folder("checkpoint-20", 3.0)
    assert compared(tolerance, far) == ([], {"checkpoint-280": "away", "checkpoint-20": "not_compared"})
    assert (tolerance.asked, far.asked) == ([checkpoint_identification._FEW_IDS], [])


def test_what_the_floor_may_hide_is_computed_whole():
    """A step of training can be smaller than what arithmetic makes; then all ids are needed."""
    tolerance = Folder("checkpoint-280", 0.02)
    assert compared(tolerance) == (["checkpoint-280"], {})
    assert tolerance.asked == [checkpoint_identification._FEW_IDS, SIZE]


def test_what_does_not_fit_is_told(monkeypatch):
    """And asked nothing."""
    second = SimpleNamespace(name="checkpoint-20", step=20, release=lambda: None)
    monkeypatch.setattr(Folder, "has_same_tensors", lambda _self, _other: False)
    assert compared(second) == ([], {"checkpoint-20": "does_not_fit"})
