"""The PostgreSQL store: batches of requests as calls of functions that live in the database.

`store` is the store, `link` the connections and the batches under way, `schema` the migrations,
`watch` what LISTEN hears. The functions are in `sql`. Begin with `store`.
"""
