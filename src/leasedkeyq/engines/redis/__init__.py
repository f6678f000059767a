"""The Redis store: batches of requests as calls of Lua functions, one hash slot per queue.

`store` is the store, `link` the connections, `engine` the threaded way and `loop` the one in the
event loop, `wire` how requests and answers are written. The functions are in `lua`, in the order of
their numbers. Begin with `store`.
"""
