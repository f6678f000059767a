"""The SQLite store: one writer thread per store object that commits whole batches.

`store` is the store, `transaction` applies requests to the tables (with `inspection` for what is
shown and `token_buckets` for rates), `schema` has the tables and their migrations, `log_file` makes
room in the write-ahead log, `watch` hears of the commits of other processes. Begin with `store`. No
other engine may import this folder: `connect` does, and programs that name its store.
"""
