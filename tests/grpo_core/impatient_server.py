"""Run `python -m grpo_core`; its server waits a tenth of the usual time for running calls when it stops."""

import sys

from grpo_core.__main__ import main
from grpo_core.rollout.server import process

process._END_ALONE_S, process._GRACE_S = 0.4, 0.5

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
