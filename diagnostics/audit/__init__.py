"""Find faults that nothing reports: in a live rollout server, in a run's files, or in metrics while they are written.

Modules: `command` (the command line), `live` (servers), `recorded` (files of a run), `metrics` (training curves),
`watch` and `callback` (a run that is training), `results` and `report` (what was found). Probes have short names, as P1
for weights; docs/audit.md lists them.
"""
