"""The engines: each keeps queues in one kind of place, behind the contract of `stores`.

`memory`, `file`, `sqlite`, `postgres` and `redis` know the contract and the model, and none knows
another. `leasedkeyq.connect` opens them by a URL. Begin with `memory`, which is the model and
nothing more, then with the `store` of the others. `connect` imports this folder, and so may all
that stands above it; but whoever can do with the contract names no engine.
"""
