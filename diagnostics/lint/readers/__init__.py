"""Read source formats into settings with their lines, one module per format. Nothing is run or imported."""
