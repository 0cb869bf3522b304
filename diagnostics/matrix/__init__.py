"""Run the compatibility matrix: checks (layers) of pairs of vLLM and TRL releases (cells), with published verdicts."""
