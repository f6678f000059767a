"""The file store: the model, loaded from one document and saved to it, under a lock.

`store` is the store, `engine` one transaction under the `file_lock`, `document_file` the document
on the disk with its previous version and the files that were set aside, `document` the text that
people read and edit. `document_merge` joins an edit that came meanwhile, `file_operations` are the
calls of the system, `watch` hears of changes by others, `snapshot` is a whole store as one text.
Begin with `store`. No other engine may import this folder: `connect` does, and programs that name
its store.
"""

from leasedkeyq.engines.file.snapshot import dump, load

__all__ = ["dump", "load"]
