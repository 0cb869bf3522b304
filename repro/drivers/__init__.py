"""Drivers of upstream code for the repros: schedulers, engines, rollouts."""
