"""From one store to another: every item, with its state, place and result.

`move` is the call, `queue_transfer` moves one queue so that it can be taken up again,
`key_transfer` copies the values of keys into the target and `key_copies` removes them from the
source, `ended_transfer` brings buried items and results. `export` writes a backup and `restore`
reads it, in the lines that `backup_format` says. The folder uses the contract and `connect`. All
that stands above may import it, and the package exports its call. Begin with `move`.
"""
