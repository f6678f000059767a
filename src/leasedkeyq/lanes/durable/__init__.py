"""Lanes on a store: commands as items, leases that are renewed, results that are kept.

`engine` is the worker's engine. `submission`, `claim_plan`, `prefetch`, `heartbeat`, `outbox` and
`results` are the steps of a command; `envelope` is a command as it is stored, `dead_letters` are
those given up. `workers` shares partitions and pauses among the processes, `stats` counts over all
of them, `unknown_types` tells of commands that no worker here can run. `reports` is what a worker
tells those who look at the store: minute values, events and stacks.

For `queue`, `storage` and `storage_store` of lanes, which stand on it; `memory` beside it, and
`running` and `policies` below, know nothing of stores. Begin with `engine`.
"""
