"""The command `hang`: find the process that blocks a hung job.

1. collect/ observes running processes, or parsers/ read dumps of other tools: a `snapshot.Snapshot`.
2. `blocking_calls` classifies what each thread waits for, and picks the thread that blocks its process.
3. `wait_graph` connects each waiting process to those that can end its wait, `collectives` does so for ranks.
4. `root_blockers` follows the graph to its end; `diagnosis` makes the verdict.
5. `known_issues` names the known issue and the fix; `sentences` and `report` write the output.

`command` is the command line; `watch` runs a command and starts a diagnosis when it stalls.
"""
