"""What drives upstream code in the repros: schedulers, engines, rollouts."""
