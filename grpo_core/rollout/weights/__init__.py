"""Send a policy version from the trainer to an engine in another process, and prove that it arrived."""
