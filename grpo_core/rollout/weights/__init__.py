"""Getting a policy version from the trainer to an engine that is somewhere else, and proving that it arrived."""
