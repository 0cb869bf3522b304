"""`lint`: what a config, a script or a command asks for, judged before anything is started."""
