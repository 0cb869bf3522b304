"""The plan of `doctor --fix-plan`: one ordered list of steps against all findings. It is printed and never run."""
