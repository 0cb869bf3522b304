"""The fix plan of `doctor --fix-plan`: one ordered list of steps for the findings. It is printed and never run."""
