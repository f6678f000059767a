"""From one store to another: every item, with its state, place, history and result.

`move` is the call, `queue_transfer` moves one queue so that it can be taken up again,
`item_transfer` says what has to be asked of a store to have an item there as it was here. It uses
the contract only. Begin with `move`.
"""
