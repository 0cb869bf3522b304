"""verl's `response_mask` with holes, where tools or users speak, and advantages of tokens, against ours.

Its losses are given such masks and advantages by their own arguments, and the step's tokens are counted as its trainer
counts them: by the mask.
"""

from __future__ import annotations

import itertools
from importlib.metadata import version

from common import SEEDS, Worst, answer, ours, spoken
from verl_forms import CORRECTIONS, FORMS, WHOLE
from verl_forms import theirs as theirs_of_form
from verl_loss import AGGREGATIONS, KLS, LOSSES, theirs


def losses():
    worst = Worst()
    for loss, aggregation, kl, correction, level, by_token, seed in itertools.product(
        LOSSES, AGGREGATIONS, KLS, CORRECTIONS, ("token", "sequence"), (False, True), SEEDS
    ):
        # verl's sapo is always a mean of means; its gpg has no ratio.
        if loss == "gpg" or (loss == "sapo" and aggregation != "seq-mean-token-mean"):
            continue
        settings = {
            "clip_high": 0.28,
            "aggregation": AGGREGATIONS[aggregation],
            "kl_coefficient": 0.04 if kl else 0.0,
            "correction_level": level,
            **KLS[kl],
            **CORRECTIONS[correction],
            **LOSSES[loss],
        }
        data = spoken(seed, by_token=by_token)
        their = theirs(data, loss=loss, aggregation=aggregation, kl=kl, correction=correction, level=level)
        worst.add(
            f"{loss} {aggregation}", *zip(ours(data, settings, length_epsilon=1e-8), their, strict=True)
        )
    for form, correction, by_token, seed in itertools.product(FORMS, CORRECTIONS, (False, True), SEEDS):
        if form == "geo_mean" and by_token:  # a sequence has one value
            continue
        data = spoken(seed, by_token=by_token)
        settings = {"surrogate": form, **CORRECTIONS[correction], **FORMS[form]}
        their = theirs_of_form(data, form, correction)
        worst.add(f"{form} {correction}", *zip(ours(data, settings, parts=WHOLE), their, strict=True))
    return worst


if __name__ == "__main__":
    answer(lambda: {"version": version("verl"), "losses": losses(), "advantages": {}})
