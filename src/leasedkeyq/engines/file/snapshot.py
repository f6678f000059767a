"""A whole store as one text, for engines that keep all of it in one place."""

from leasedkeyq.engines.file import loading
from leasedkeyq.engines.file.document.checksum import seal, unseal
from leasedkeyq.engines.file.document.codec import Texts
from leasedkeyq.engines.file.document.fields import NonsenseError
from leasedkeyq.engines.file.document.queues_form import QueuesForm
from leasedkeyq.engines.file.saving import sync
from leasedkeyq.errors import StoreError
from leasedkeyq.model.requests import Limits
from leasedkeyq.model.store_model import StoreModel

_TEXTS = Texts([QueuesForm()], yaml=False)


def dump(model: StoreModel) -> bytes:
    """All that `model` holds, as JSON with a checksum; times to the microsecond."""
    document = _TEXTS.start()
    sync(document, model)
    return seal(_TEXTS.render(document), yaml=False)


def load(text: bytes, limits: Limits, now: float) -> StoreModel:
    """The model that `dump` has written.

    Raises:
        StoreError: The text is damaged, or was written by a newer version.
    """
    body, fits = unseal(text, yaml=False)
    if not fits:
        raise StoreError("the text is not complete, or was changed: restore it from a backup")
    try:
        return loading.load(_TEXTS.parse_ours(body), limits, now, ours=True)
    except NonsenseError as error:
        raise StoreError(f"the text cannot be read: {error}; upgrade leasedkeyq") from error
