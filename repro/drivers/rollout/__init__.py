"""A rollout as verl lays it out on Ray: a driver, named workers, a server actor, and vLLM's engine process below it.

Four kinds of process, as in a real run: the driver (`job`), Ray's own, the actors (`actors`), and the engine process
(`engine`), in which verl's executor looks the workers up.
"""
