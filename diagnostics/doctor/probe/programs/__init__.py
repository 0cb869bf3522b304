"""Programs that the examined environment's Python runs. They use its packages; doctor itself never imports them."""
