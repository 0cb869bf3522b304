"""The command `lint`: check a config, a script or a command before it is started."""
