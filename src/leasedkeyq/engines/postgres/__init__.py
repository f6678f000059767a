"""The PostgreSQL store: batches of requests as calls of functions that live in the database.

`store` is the store and `queue` a queue of it, `link` the connections and the batches under way,
`batch` what the functions are told and what they answer, `errors` what the driver raises, `watch`
what LISTEN hears, `schema` the migrations. The functions are in `sql`, a file for each subject, put
together by `schema`. Begin with `store`, and in `sql` with `tables` and `apply`. No other engine
may import this folder: `connect` does, and programs that name its store.
"""
