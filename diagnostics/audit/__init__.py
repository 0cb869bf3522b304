"""Find silent faults: in a live rollout server, in a run's files, or in metrics while they are written.

Modules: `command` (the command line), `live` (servers), `recorded` (files of a run), `training_curves` (metrics),
`watch` and `callback` (a run that is training) with their `finding_tracker`, `checkpoint_validation` (loads checkpoints
safely), `results` and `report` (what was found). Many checks have a number, from P0 to P14; docs/audit.md lists them.
"""
