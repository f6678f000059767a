"""The SQLite store: one writer thread per process that commits whole batches.

`store` is the store, `engine` applies requests to the database, `schema` has the tables and their
migrations, `watch` hears of the changes of other processes. Begin with `store`.
"""
