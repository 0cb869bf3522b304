"""Programs that measure the project: acceptance, accuracy, robustness; pytest does not collect them."""
