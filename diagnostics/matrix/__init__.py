"""The compatibility matrix: run checks (layers) on pairs of vLLM and TRL releases (cells), publish the verdicts."""
