"""A queue on a store, and what its callers wait with.

`pump` is for those who wait for items and `room` for those who wait for room; `lease_book` knows
the leases that the queue has given out. Begin with `store_queue`.
"""
