"""A run that goes on: cheap questions at every step, a server's probes now and then; findings come, go and return."""
