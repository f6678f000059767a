"""What an operator sees and does: what the command line and the web page have in common.

`views` is what they show, as plain data. It uses the contract of stores and the public names of
lanes, so that it works on every store. Only `web` and `cli` may import it.
"""
