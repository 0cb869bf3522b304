"""`hang`: find the process that blocks a hung job.

collect/ observes processes, parsers/ read dumps of other tools; both return a snapshot.Snapshot. blocking_thread says
what each process is blocked on, wait_graph who waits for whom, diagnosis which process blocks the job, report prints.
"""
