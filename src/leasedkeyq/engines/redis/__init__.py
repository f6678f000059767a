"""The Redis store: batches of requests as calls of a Lua script, one hash slot per queue.

`store` is the store; `engine` says what to ask of the server for a batch, and `wire` how that and
the answers are written. Two links do the asking: `loop_link` in the event loop, `link` in a thread,
for clusters. `subscriber` hears of changes that others make. The script is in
`lua`; `link.SCRIPT_PARTS` has its files in order. Begin with `store`. No other engine may import
this folder: `connect` does, and programs that name its store.
"""
