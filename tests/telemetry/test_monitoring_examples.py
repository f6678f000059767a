"""The alert rules and the dashboard in `examples/monitoring` name metrics and labels that exist."""

import asyncio
import json
import re
from contextlib import suppress
from pathlib import Path

import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest

from leasedkeyq import MemoryStore, StoreClosedError
from leasedkeyq.cli.metrics_text import lane_text
from leasedkeyq.lanes import LaneConfig, QueueManagerBuilder
from leasedkeyq.telemetry.prometheus import PrometheusInstrument
from tests.test_documents import ROOT

FOLDER = ROOT / "examples/monitoring"
NAME = re.compile(r"leasedkeyq_\w+")
SELECTOR = re.compile(r"(leasedkeyq_\w+)\{([^}]*)\}")
BY = re.compile(r"by \(([^)]*)\)[^(]*\((?:[a-z_]+\()*(leasedkeyq_\w+)")


def told() -> str:
    """What a worker and an instrument tell after a command that was done and one that failed."""
    registry = CollectorRegistry()
    instrument = PrometheusInstrument(registry)

    async def main() -> str:
        store = MemoryStore()
        store.instrument(instrument)
        builder = QueueManagerBuilder().with_lane("api", LaneConfig(0, 2), 0).with_storage(store)
        manager = builder.with_metrics(instrument).build()

        @manager.command("divide")
        async def divide(by: int) -> float:
            return 1 / by

        async with manager:
            for by in (1, 0):
                with suppress(ZeroDivisionError):
                    await (await manager.submit("api", divide(by)))
            stats = await manager.stats()
        await store.close()
        with suppress(StoreClosedError):
            await store.count()
        assert manager.metrics is not None
        return lane_text(manager.metrics.snapshot(), stats)

    return asyncio.run(main()) + generate_latest(registry).decode()


def expressions() -> dict[str, list[str]]:
    rules = yaml.safe_load((FOLDER / "alerts.yml").read_text(encoding="utf-8"))
    page = json.loads((FOLDER / "grafana.json").read_text(encoding="utf-8"))
    return {
        "alerts.yml": [rule["expr"] for group in rules["groups"] for rule in group["rules"]],
        "grafana.json": [
            *(target["expr"] for panel in page["panels"] for target in panel["targets"]),
            *(one["query"] for one in page["templating"]["list"] if one["type"] == "query"),
        ],
    }


@pytest.mark.parametrize("file", ["alerts.yml", "grafana.json"])
def test_every_metric_and_label_exists(file: str) -> None:
    samples = [line for line in told().splitlines() if not line.startswith("#")]
    labels: dict[str, set[str]] = {}
    for line in samples:
        name, _, rest = line.partition("{")
        names = re.findall(r'(\w+)="', rest)
        labels.setdefault(name.split(" ")[0], set()).update(names)
    for expression in expressions()[file]:
        assert set(NAME.findall(expression)) <= labels.keys()
        for name, selected in SELECTOR.findall(expression):
            assert set(re.findall(r"(\w+)=", selected)) <= labels[name]
        for grouped, name in BY.findall(expression):
            assert {one.strip() for one in grouped.split(",")} <= labels[name]


def test_every_outcome_in_the_rules_is_one() -> None:
    text = (FOLDER / "alerts.yml").read_text(encoding="utf-8")
    [named] = re.findall(r'outcome=~"([^"]*)"', text)
    found = set(re.findall(r'outcome="(\w+)"', told()))
    assert set(named.split("|")) <= found


def test_every_alert_says_what_to_do() -> None:
    rules = yaml.safe_load(Path(FOLDER / "alerts.yml").read_text(encoding="utf-8"))
    for rule in rules["groups"][0]["rules"]:
        assert rule["annotations"].keys() == {"summary", "action"}, rule["alert"]
