"""Two versions of the file store's document become one: that of the store, and that of a person.

Where the version is known that both were made from, each change of the person is taken up that
does not touch what the store has changed meanwhile, field by field. Where it is not known, only new
items are. What could not be taken up is told in `Merge.conflicts`.

Whether a value is the head of its key or in its line, the store knows better: the head may be done
meanwhile. The order of a line is that of the person.
"""

from dataclasses import dataclass, field

import msgspec

from leasedkeyq.engines.file.document.document import (
    BUCKETS,
    COUNTERS,
    Document,
    Entry,
    Section,
    by_key,
)


@dataclass
class Merge:
    """A document with an edit in it, and what became of the edit."""

    document: Document
    added: int = 0
    removed: int = 0
    changed: int = 0
    conflicts: list[str] = field(default_factory=list[str])

    def __str__(self) -> str:
        return f"{self.added} items added, {self.removed} removed, {self.changed} changed"


def add_new_items(last: Document, edited: Document) -> Merge | None:
    """Add the new items of an edit of an older version to the `last` one; both were loaded.

    None if it was an edit of this version.

    Raises:
        NonsenseError: They have no place there.
    """
    if edited.revision >= last.revision:
        return None
    merge = Merge(last)
    for name, section in edited.sections.items():
        target = last.sections.get(name)
        if target is None:
            target = last.sections[name] = last.form.open_section(last, name)
        live = {entry.key for entry in target.entries}
        known = {entry.written_id for entry in section.entries}
        arrived = by_key(entry for entry in target.entries if entry.id not in known)
        for entry in section.entries:
            if not entry.new or (entry.key in live and not entry.in_line):
                continue
            if _arrived(entry, arrived):
                continue
            live.add(entry.key)
            target.entries.append(entry)
            merge.added += 1
        target.entries = last.form.arrange(target.entries)
    return merge


def merge_edit(base: Document, ours: Document, edited: Document) -> Merge | None:
    """Bring what a person changed since `base` together with what the store changed since.

    All three were loaded, so that their items have numbers. None where that cannot be done: the
    edit was made from another version, or the settings changed at the same time.
    """
    if edited.revision != base.revision or ours.settings != base.settings:
        return None
    merge = Merge(edited)
    sections: dict[str, Section] = {}
    for name in dict.fromkeys((*ours.sections, *edited.sections)):
        theirs = edited.sections.get(name)
        mine = ours.sections.get(name)
        section = theirs or mine or Section()
        merged = _merge_items(
            _by_number(base.sections.get(name)),
            _by_number(mine),
            [] if theirs is None else theirs.entries,
            merge,
        )
        section.entries = edited.form.arrange(merged)
        sections[name] = section
    edited.sections = sections
    ours_only = (*COUNTERS, BUCKETS)
    rest = {name: text for name, text in edited.head.fields.items() if name not in ours_only}
    known = {name: text for name, text in ours.head.fields.items() if name in ours_only}
    edited.head.fields = known | rest
    edited.head.text = ""
    return merge


def _by_number(section: Section | None) -> dict[int, Entry]:
    return {} if section is None else {entry.id: entry for entry in section.entries}


def _merge_items(
    base: dict[int, Entry], ours: dict[int, Entry], edited: list[Entry], merge: Merge
) -> list[Entry]:
    theirs = {entry.written_id: entry for entry in edited if not entry.new}
    taken: dict[int, Entry] = {}
    ours_new = by_key(entry for number, entry in ours.items() if number not in base)
    for number, mine in ours.items():
        before, their = base.get(number), theirs.get(number)
        if before is None:
            taken[number] = mine
        elif their is None:
            if _same(before, mine):
                merge.removed += 1
            else:
                merge.conflicts.append(f"{mine.key!r} was removed, and in use")
                taken[number] = mine
        else:
            taken[number] = _merge_item(before, mine, their, merge)
    for number, their in theirs.items():
        old = base.get(number)
        if number not in ours and (old is None or not _same(old, their)):
            merge.conflicts.append(f"{their.key!r} was changed, and done meanwhile")
    new: list[Entry] = []
    for entry in edited:
        if not entry.new or _arrived(entry, ours_new):
            continue
        if ours_new.get(entry.key) and not entry.in_line:
            merge.conflicts.append(f"{entry.key!r} was added twice at the same time")
        else:
            merge.added += 1
            new.append(entry)
    return _in_order(base, taken, edited, new)


def _in_order(
    base: dict[int, Entry], taken: dict[int, Entry], edited: list[Entry], new: list[Entry]
) -> list[Entry]:
    """The items in the order of the person, if that is another than it was, or else in ours."""
    listed = [entry.written_id for entry in edited if entry.written_id in base]
    kept = set(listed)
    if listed != [number for number in base if number in kept]:
        first = [taken[number] for number in listed if number in taken]
        rest = [entry for number, entry in taken.items() if number not in kept]
        entries = first + rest
    else:
        entries = list(taken.values())
    # A new item stands where the person put it: behind the one that it followed.
    added = set(map(id, new))
    last = [entry for entry in _at_end_of_line(edited) if id(entry) in added]
    added.difference_update(map(id, last))
    behind: dict[int, list[Entry]] = {0: []}
    place = 0
    for entry in edited:
        if id(entry) in added:
            behind[place].append(entry)
        elif entry.written_id in taken:
            place = entry.written_id
            behind[place] = []
    ordered = behind.pop(0)
    for entry in entries:
        ordered += [entry, *behind.get(entry.written_id, ())]
    return ordered + last


def _at_end_of_line(edited: list[Entry]) -> list[Entry]:
    """The new values at the end of a line.

    They go behind what the store has appended meanwhile, as that has ids which are in use.
    """
    known: set[str] = set()
    last: list[Entry] = []
    for entry in reversed(edited):
        if entry.in_line and not entry.new:
            known.add(entry.key)
        elif entry.in_line and entry.key not in known:
            last.append(entry)
    return last[::-1]


def _merge_item(before: Entry, mine: Entry, their: Entry, merge: Merge) -> Entry:
    if their.key == mine.key and their.in_line is not mine.in_line:
        merge.document.form.place(their, in_line=mine.in_line)
    if _same(before, their):
        # The comments of the person stay.
        changed = not _same(before, mine)
        their.record = mine.record
        if changed:
            their.fields = dict(mine.fields)
            their.text = ""
        return their
    merge.changed += 1
    if _same(before, mine):
        their.record = their.record or mine.record
        return their
    fields: dict[str, str] = {}
    for name in dict.fromkeys((*mine.fields, *their.fields)):
        old, our, new = (entry.fields.get(name) for entry in (before, mine, their))
        if _same_text(old, new):
            text = our
        else:
            text = new
            if not _same_text(old, our) and not _same_text(our, new):
                merge.conflicts.append(f"{name} of {mine.key!r} was changed by both")
                text = our
        if text is not None:
            fields[name] = text
    their.fields = fields
    their.record = mine.record
    their.text = ""
    return their


def _arrived(entry: Entry, arrived: dict[str, list[Entry]]) -> bool:
    """Whether a new entry is one of those that the store has got meanwhile; then it is taken off.

    Often it is: it came with an earlier edit that was taken up just before.
    """
    same = next((one for one in arrived.get(entry.key, ()) if _agrees(entry, one)), None)
    if same is not None:
        arrived[entry.key].remove(same)
    return same is not None


def _same(one: Entry, other: Entry) -> bool:
    """Whether two entries say the same, in whatever style."""
    if one.fields.keys() != other.fields.keys():
        return False
    texts = ((text, other.fields[name]) for name, text in one.fields.items())
    return all(_same_text(*pair) for pair in texts) and _same_text(one.record, other.record)


def _agrees(short: Entry, full: Entry) -> bool:
    """Whether an entry says nothing that another one does not say, too."""
    return all(_same_text(full.fields.get(name), text) for name, text in short.fields.items())


def _same_text(one: str | None, other: str | None) -> bool:
    if one == other:
        return True
    if not one or not other:
        return False
    return bool(msgspec.json.decode(one) == msgspec.json.decode(other))
