"""`hang`: find the process that blocks a hung job.

collect/ observes processes, parsers/ read dumps of other tools; both return a snapshot.Snapshot. blocking_thread finds
the blocking call of each process, wait_graph its wait-for edges, diagnosis the process that blocks the job.
"""
