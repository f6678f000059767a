"""Where the code of a command runs: the event loop, `threads`, or `processes` of the worker.

`process_child` is the other end of a process. `loop_watch` sees that the event loop is blocked, and
`stacks` and `command_stacks` tell where a command is. Begin with `threads`.
"""
