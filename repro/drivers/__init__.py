"""Drivers of unmodified upstream code for the repros: schedulers, engines, trainers, hanging processes."""
