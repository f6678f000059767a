"""Who holds a lease. Its token tells: what is behind the first "@" of it is the holder.

So a holder costs no column and no write of its own, ends with its lease, and is a part of every
lease that a program keeps, logs or hands on. Programs that know nothing of holders compare tokens
as a whole, as all do.
"""

import uuid
from functools import lru_cache
from typing import Final
from urllib.parse import quote, unquote

LONGEST_HOLDER: Final = 200
"""Characters of a holder."""
AT: Final = "@"
"""Between what cannot be guessed of a token, which has none, and the holder."""
PLAIN: Final = "!\"#$&'()*+,-./:;<=>?@[\\]^_`{|}~"
"""What stands for itself in a token, beside letters and digits. Others, such as blanks, do not:
a call to a database may separate tokens by them."""


@lru_cache(1024)
def token_tail(holder: str) -> str:
    """What a token of this holder ends with; nothing for no holder."""
    return AT + quote(holder, safe=PLAIN) if holder else ""


def new_token(holder: str) -> str:
    """A token that nobody can guess: a random UUID, and the holder."""
    return f"{uuid.uuid4()}{token_tail(holder)}"


def holder_of(token: str) -> str:
    """Whose lease this is the token of; empty if it does not tell."""
    return unquote(token.partition(AT)[2])
