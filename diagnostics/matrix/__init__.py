"""The compatibility matrix: cells of pinned versions, layers of checks, and the published verdicts."""
