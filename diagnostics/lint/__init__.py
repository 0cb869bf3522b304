"""Implement the command `lint`, which checks a config, a script or a command before it is started."""
