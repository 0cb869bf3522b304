"""`doctor --fix-plan`: all findings made into one ordered plan. It is printed; nothing of it is ever run."""
