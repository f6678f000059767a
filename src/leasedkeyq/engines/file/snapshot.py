"""A whole store as one text, for engines that keep all of it in one place."""

from leasedkeyq.engines.file.document.codec import DocumentCodec, add_checksum, split_checksum
from leasedkeyq.engines.file.document.json_fields import NonsenseError
from leasedkeyq.engines.file.document.model_mapping import load as load_document
from leasedkeyq.engines.file.document.model_mapping import sync
from leasedkeyq.engines.file.document.queues_form import QueuesForm
from leasedkeyq.errors import StoreError
from leasedkeyq.model.requests import Limits
from leasedkeyq.model.store_model import StoreModel

_CODEC = DocumentCodec([QueuesForm()], yaml=False)


def dump(model: StoreModel) -> bytes:
    """All that `model` holds, as JSON with a checksum; times to the microsecond."""
    document = _CODEC.start()
    sync(document, model)
    return add_checksum(_CODEC.render(document), yaml=False)


def load(text: bytes, limits: Limits, now: float) -> StoreModel:
    """The model that `dump` has written.

    Raises:
        StoreError: The text is damaged, or was written by a newer version.
    """
    body, fits = split_checksum(text, yaml=False)
    if not fits:
        raise StoreError("the text is not complete, or was changed: restore it from a backup")
    try:
        return load_document(_CODEC.parse_ours(body), limits, now, ours=True)
    except NonsenseError as error:
        raise StoreError(f"the text cannot be read: {error}; upgrade leasedkeyq") from error
