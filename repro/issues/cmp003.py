"""CMP003: TRL takes packages for installed that are not.

TRL up to 0.28 asks a private function of transformers whether a package is installed. From transformers 5 on it answers
with a pair, and a pair is always true: TRL imports vllm_ascend, weave and others that are not there.
"""

from __future__ import annotations

from repro.base import Repro
from repro.drivers import trl_imports

REPRO = Repro(
    code="CMP003",
    title="TRL takes packages for installed that are not, beside transformers 5",
    distributions=trl_imports.DISTRIBUTIONS,
    triggers=trl_imports.triggers("CMP003"),
    mitigations=trl_imports.another_release("TRL 0.29 or newer, or transformers 4"),
    inapplicable=trl_imports.without_trl,
)
