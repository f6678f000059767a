"""From one store to another: every item, with its state, place and result.

`move` is the call, `queue_transfer` moves one queue so that it can be taken up again,
`item_transfer` puts items into their place in the target and reads them back. The folder
uses the contract and `connect`. All that stands above may import it, and the package
exports its call. Begin with `move`.
"""
