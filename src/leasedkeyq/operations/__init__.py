"""What an operator sees and does: what the command line and the web page have in common.

`operator` has the `Operator`, which looks and acts; `views` is what they show, as plain data.
All of it uses the contract of stores and the names of lanes, so that it works on every store.
Only `web` and `cli` may import it. Begin with `views`.
"""
