"""Hidden fields are nowhere in what an operator sees, and cannot be searched for."""

import json
from typing import Any

import pytest

from leasedkeyq import MemoryStore
from leasedkeyq.lanes import LaneConfig, QueueManagerBuilder
from leasedkeyq.operations.items.redaction import HIDDEN, UNREADABLE, Redaction
from leasedkeyq.operations.operator import Operator
from leasedkeyq.operations.views import ItemFilter, ItemView

VALUE = {
    "name": "Ada",
    "Password": "hunter22",
    "card": {"number": 4111111111111111, "cvv": "737", "kind": "visa"},
    "lines": [{"note": "a"}, {"note": "b", "token": ["t-one", {"deep": "t-two"}]}],
}


@pytest.mark.parametrize(
    "rules, hidden",
    [
        (["password"], {"hunter22"}),
        ("card", {"4111111111111111", "737", "visa"}),
        (["card.number"], {"4111111111111111"}),
        (["card.*"], {"4111111111111111", "737", "visa"}),
        (["lines.*.token"], {"t-one", "t-two"}),
        (["lines.1.note"], {"b"}),
        (["number.card", "cvv.card"], set()),
        (lambda path, value: path[-1:] == ("cvv",), {"737"}),
        (lambda path, value: path == (), None),
    ],
)
def test_what_a_rule_hides(rules: Any, hidden: set[str] | None) -> None:
    shown, secrets = Redaction(rules).value(VALUE)
    if hidden is None:
        assert shown == HIDDEN
        return
    assert set(secrets) == hidden
    text = json.dumps(shown)
    assert not [secret for secret in hidden if f'"{secret}"' in text or f": {secret}" in text]
    assert list(shown) == list(VALUE)
    assert VALUE["Password"] == "hunter22", "the value itself stays as it is"


def test_what_was_hidden_is_hidden_in_errors_and_progress_too() -> None:
    redaction = Redaction(["password", "cvv", "number"])
    item = ItemView(
        id=1,
        queue="q",
        key="k",
        state="buried",
        value=VALUE,
        raw=json.dumps(VALUE),
        error="ValueError: 'hunter22' with 737 and 4111111111111111, 7370 stays",
        progress={"message": "sends hunter22"},
    )
    shown = redaction.item(item)
    assert shown.error == f"ValueError: '{HIDDEN}' with {HIDDEN} and {HIDDEN}, 7370 stays"
    assert shown.progress == {"message": f"sends {HIDDEN}"}
    assert "hunter22" not in shown.raw
    assert redaction.hides(shown)
    assert not Redaction().hides(item)
    assert Redaction().item(item) is item


def test_what_cannot_be_taken_apart_is_hidden_as_a_whole() -> None:
    redaction = Redaction(["password"])
    raw = "\\xff password=hunter22"
    item = ItemView(id=1, queue="q", key="k", state="available", raw=raw, readable=False)
    assert redaction.item(item).raw == UNREADABLE
    assert redaction.raw("1" * 5000)[0] == "1" * 5000, "a number that Python does not read"
    assert redaction.raw("[" * 100_000)[0] == UNREADABLE


async def test_an_operator_finds_nothing_by_what_is_hidden() -> None:
    """Neither by the text of errors, nor in a group of them: that would be an oracle."""
    store = MemoryStore()
    queue = store.queue("mail", default_lease_timeout=60)
    await queue.put("k", {"password": "hunter22"})
    _, _, lease = await queue.get()
    await queue.bury(lease, error="ValueError: hunter22 is too short")
    plain, careful = Operator(store), Operator(store, redaction=Redaction(["password"]))
    wanted = ItemFilter(error="hunter")
    assert len((await plain.items("mail", wanted)).items) == 1
    assert not (await careful.items("mail", wanted)).items
    assert (await careful.count_matching("mail", wanted)).count == 0
    (group,) = (await careful.error_groups()).groups
    assert "hunter22" not in repr(group)
    found = await careful.items("mail", ItemFilter(error_group=group.error))
    assert len(found.items) == 1
    assert "hunter22" not in repr(found)
    item = await careful.item("mail", "k")
    assert item is not None
    assert "hunter22" not in repr(item)


async def test_arguments_of_commands_are_hidden() -> None:
    store = MemoryStore()
    manager = (
        QueueManagerBuilder().with_lane("mail", LaneConfig(0, 1), 0).with_storage(store).build()
    )

    @manager.command("send")
    async def send(to: str, password: str) -> None:
        """Never run here."""

    await manager.submit("mail", send(to="ada", password="hunter22"))
    careful = Operator(store, redaction=Redaction(["password"]))
    (item,) = (await careful.items("mail")).items
    assert item.value == {"to": "ada", "password": HIDDEN}
    assert "hunter22" not in repr(item)
    await manager.close()


def test_a_document_keeps_its_digits_and_its_order() -> None:
    raw = '{"b":0.10,"pin":1.50,"id":12345678901234567890123,"b":2}'
    shown, secrets = Redaction("pin").raw(raw)
    assert shown == '{"b": 0.10, "pin": "[hidden]", "id": 12345678901234567890123, "b": 2}'
    assert set(secrets) == {"1.50", "1.5"}
    assert Redaction("other").raw(raw) == (raw, ())


@pytest.mark.parametrize("value", ["true", "false", "null", '""', "[]", "{}"])
def test_what_cannot_be_searched_for_is_hidden_in_a_document_too(value: str) -> None:
    shown, secrets = Redaction("pin").raw(f'{{"pin":{value}}}')
    assert shown == '{"pin": "[hidden]"}'
    assert secrets == ()
