"""The file store: the model, loaded from one document and saved to it, under a lock.

`store` is the store, `engine` one transaction, `document_file` the document on the disk with its
lock, its previous version and what is set aside, `document` the text that people read and edit.
Begin with `store`.
"""
