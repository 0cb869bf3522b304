"""Drivers of unmodified upstream code, shared by the repros: schedulers, engines, trainers, hanging processes."""
