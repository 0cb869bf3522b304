"""`audit`: asks an engine, or what a run left behind, for the fault that nothing reports, and names its cause."""
