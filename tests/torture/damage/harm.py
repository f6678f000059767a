"""Files cut off, zeroed, with flipped bits or sectors of rubbish."""

from random import Random

SECTOR = 512


def harm(content: bytes, dice: Random) -> bytes:
    """The content with some damage; never the same as before."""
    while True:
        harmed = _harm(content, dice)
        if harmed != content:
            return harmed


def _harm(content: bytes, dice: Random) -> bytes:
    kind = dice.randrange(8)
    cut = dice.randrange(len(content))
    if kind < 2:
        return content[:cut]
    if kind == 2:
        # Half written: zeros where the rest should be.
        return content[:cut] + bytes(len(content) - cut)
    harmed = bytearray(content)
    if kind == 3:
        start = cut // SECTOR * SECTOR
        end = min(start + SECTOR, len(content))
        harmed[start:end] = dice.choice((bytes(end - start), dice.randbytes(end - start)))
    else:
        # One bit of a byte: two of them make another letter, as an edit does.
        count = 1 if kind < 6 else dice.randint(2, 5)
        for at in dice.sample(range(len(harmed)), min(count, len(harmed))):
            harmed[at] ^= 1 << dice.randrange(8)
    return bytes(harmed)
