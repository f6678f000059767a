"""Commands that follow each other: chains and gathers, and room for larger workflows.

`steps` has the commands that wait for the result of another one, and checks them when they are
submitted. `note` is what a command in a store knows of its workflow: it travels with the command.
`outcome` is what became of a member of a gather.

The engines of lanes carry it out: `leasedkeyq.lanes.memory` with
`leasedkeyq.lanes.running.local_workflow` in memory, and `leasedkeyq.lanes.durable.workflow` on a
store. Begin with `steps`.
"""
