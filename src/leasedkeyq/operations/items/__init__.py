"""Items, as operators see and change them.

`item_search` finds them, `item_views` shows one, `timeline` tells its life, and `redaction` hides
what nobody should see. `bulk` changes many, `burying` gives up one that waits. Begin with
`item_search`.
"""
