"""Read source formats into settings with their lines; each format has a module. Nothing is run or imported."""
