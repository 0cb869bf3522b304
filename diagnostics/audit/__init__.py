"""Find silent faults: in a live rollout server, in a run's files, or in metrics while they are written.

Modules: `command` (the command line), `live` (servers), `recorded` (files of a run), `metrics` (training curves),
`watch` and `callback` (a run that is training), `results` and `report` (what was found). Each check is numbered P0 to
P14 (P1 checks the weights); docs/audit.md lists them.
"""
