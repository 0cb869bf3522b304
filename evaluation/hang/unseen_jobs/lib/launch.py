"""Start the ranks of train.py and wait for them, as a small launcher does."""

import sys

from job import start_ranks

if __name__ == "__main__":
    ranks = start_ranks(int(sys.argv[1]), *sys.argv[2:])
    sys.exit(max(rank.wait() for rank in ranks))
