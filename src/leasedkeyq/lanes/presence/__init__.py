"""What workers tell of themselves through their store, for other workers and for operators.

`records` and `catalog_records` are what is written down, `catalog` writes lanes and command types,
`directory` reads all of it, and pauses lanes, with nothing but a store. `leasedkeyq.lanes.durable`
writes what a worker tells while it lives; only it and `leasedkeyq.operations` import this. Begin
with `records`.
"""
