"""Lanes on a store: commands as items, leases that are renewed, results that are kept.

`engine` is the worker's engine; `submission`, `claim_plan`, `prefetch`, `heartbeat`, `outbox` and
`results` are the steps of a command. Begin with `engine`.
"""
