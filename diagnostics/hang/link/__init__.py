"""Links processes: edges of who waits for whom, each with the evidence that it rests on."""
