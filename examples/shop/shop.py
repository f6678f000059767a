"""A shop: six lanes, work of every kind, failures and retries, schedules.

`live.py` beside it runs all of it, with the web page. In this folder, by hand:

    leasedkeyq worker shop:manager      a worker
    python shop.py                      customers who place orders, and an office
    leasedkeyq top sqlite:///shop.db    what happens
"""

import asyncio
import os
import random
import time
from datetime import timedelta

from leasedkeyq import connect
from leasedkeyq.lanes import (
    LaneConfig,
    QueueManagerBuilder,
    RateLimitConfig,
    RetryPolicy,
    current_command,
    track,
)
from leasedkeyq.operations import ItemFilter, Operator

CUSTOMERS = ["ada", "bob", "cleo", "dan", "eve", "fay", "gus", "hal", "ida", "jon"]
ARTICLES = ["book", "lamp", "chair", "pen", "kettle", "bicycle"]

orders = LaneConfig(
    2,
    6,
    timeout=30,
    lease_time=6,  # the commands of a worker that was killed run again after that time
    retry_policy=RetryPolicy.exponential(3),
    on_dead_letter="pause_key",
)
mail = LaneConfig(
    1,
    4,
    timeout=20,
    lease_time=6,
    retry_policy=RetryPolicy.fixed(2, 2),
    rate_limit=RateLimitConfig.per_second(4),
)
background = LaneConfig(0, 2, lease_time=6, retry_policy=RetryPolicy.fixed(1, 3))

URL = os.environ.get("SHOP_STORE", "sqlite:///shop.db")

manager = (
    QueueManagerBuilder()
    .with_lane("payments", orders.with_global_concurrency(3), 0)
    .with_lane("orders", orders, 1)
    .with_lane("mail", mail, 2)
    .with_lane("shipping", orders, 3)
    .with_lane("images", background, 4)
    .with_lane("reports", background, 5)
    .with_storage(URL)
    .build()
)


def of_customer(customer: str, *_: object) -> str:
    """What commands of one customer have in common: they run one at a time, in order."""
    return customer


@manager.command("order.place", lane="orders", key=of_customer)
async def place_order(customer: str, number: int, articles: dict[str, int]) -> str:
    """Take an order. The orders of one customer are taken in turn."""
    await asyncio.sleep(random.uniform(0.1, 1.0))
    await manager.submit(charge(customer, number, 5 * sum(articles.values())))
    return f"order {number} of {sum(articles.values())} articles"


@manager.command("payment.charge", lane="payments", key=of_customer)
async def charge(customer: str, number: int, euros: int) -> str:
    """Ask the bank for money, which does not always answer."""
    await asyncio.sleep(random.uniform(0.2, 1.2))
    if euros > 100:
        raise PermissionError(f"card of {customer!r} declined for {euros} euros")
    if random.random() < 0.15:
        raise ConnectionError(f"the bank did not answer about order {number}")
    await manager.submit(send_mail(customer, "receipt", number))
    await manager.submit(pack(customer, number))
    return f"{euros} euros"


@manager.command("mail.send", lane="mail")
async def send_mail(customer: str, template: str, number: int) -> None:
    """Send a mail; the lane sends four a second."""
    await asyncio.sleep(0.1)
    if template == "receipt" and number % 40 == 0:
        raise ValueError(f"no address for {customer!r}")


@manager.command("parcel.pack", lane="shipping", key=of_customer)
async def pack(customer: str, number: int) -> str:
    """Pack a parcel, step by step, and tell how far that is."""
    command = current_command()
    for step in range(10):
        command.progress(step / 10, f"article {step + 1} of 10 for {customer}")
        await asyncio.sleep(random.uniform(0.1, 0.6))
    return f"parcel {number}"


@manager.command("image.resize", lane="images")
def resize(name: str, width: int) -> str:
    """Work that does not give way: it runs in a thread."""
    time.sleep(random.uniform(0.5, 3.0))
    return f"{width}/{name}"


@manager.command("report.day", lane="reports", timeout=120)
async def report(kind: str, rows: int = 200) -> str:
    """Walk through many rows."""
    async for _ in track(range(rows), "row"):
        await asyncio.sleep(0.05)
    return f"{kind}: {rows} rows"


manager.schedule("stock take", report("stock"), every=timedelta(seconds=45))
manager.schedule("newsletter", send_mail("all", "news", 1), every=timedelta(minutes=2))
manager.schedule("close the books", "0 3 * * 1-5", report("books"), tz="Europe/Berlin")


async def place_orders() -> None:
    """Customers come and go, sometimes many at a time."""
    number = 0
    while True:
        for _ in range(random.choice([1, 1, 2, 6])):
            number += 1
            articles = {name: random.randint(1, 5) for name in random.sample(ARTICLES, 2)}
            if number % 25 == 0:
                articles["bicycle"] = 30  # more than the bank lends
            await manager.submit(place_order(random.choice(CUSTOMERS), number, articles))
            if number % 4 == 0:
                await manager.submit(resize(f"photo-{number}.jpg", 640))
        await asyncio.sleep(random.uniform(0.5, 2.5))


async def settle_payments() -> None:
    """The office talks to customers whose card was declined, and gives their orders up.

    A declined payment holds the later ones of its customer: without this they would wait for ever.
    """
    declined = ItemFilter(states=("buried",), older_than=90)
    async with connect(URL) as store:
        while True:
            await asyncio.sleep(30)
            await Operator(store).bulk("remove", "payments", declined, actor="office")


async def main() -> None:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(place_orders())
        tasks.create_task(settle_payments())


if __name__ == "__main__":
    asyncio.run(main())
