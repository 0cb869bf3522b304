"""What was answered, kept: events, the store, and what an answer rests on."""
