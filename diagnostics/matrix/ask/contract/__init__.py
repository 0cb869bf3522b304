"""Does the trainer use names that this engine release doesn't have? Answered from source alone.

`conditions` decides guards, `uses` collects what the trainer's source takes from the engine, `surface` knows
what the engine's source offers, `compare` holds one against the other.
"""
