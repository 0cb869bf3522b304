"""One file a format, as its writer's source has it; all of them bounded, and what they can't read they name."""
