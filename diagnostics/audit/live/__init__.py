"""Audit a live rollout server: compare it with the checkpoint whose weights it should hold.

`server_audit.audit_server` runs all probes. torch and transformers are needed.
"""
