"""Run the compatibility matrix: checks (layers) of pairs of vLLM and trainer releases (cells); publish the verdicts."""
