"""`doctor --fix-plan`: one ordered plan for all findings. It is printed and never carried out."""
