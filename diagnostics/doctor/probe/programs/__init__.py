"""Programs that the examined environment's Python runs. They use its packages, and doctor never imports them."""
