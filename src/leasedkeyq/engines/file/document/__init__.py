"""The document of a file store: from the text that people edit to items, and back.

`document` is what a text says, `codec` goes from bytes to it and back, `model_mapping` from it to
the model and back; `queues_form` and `repository_form` are the two forms that a document has. YAML
that we wrote is `plain_yaml`, that of a person `handwritten_yaml`. No module here touches a file.
Begin with `codec`. Only
the file store imports this folder.
"""
