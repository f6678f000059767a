"""Other queues on PostgreSQL, each used as its documentation has it."""

import asyncio
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from benchmarks.server_workloads import Library


class PgQueuer(Library):
    """Callers share a pool of connections; the worker has one, and uvloop, as its own command."""

    async def open(self) -> None:
        self._pool: Any = await import_module("asyncpg").create_pool(self.url)
        self._queries: Any = import_module("pgqueuer").Queries.from_asyncpg_pool(self._pool)
        await self._queries.install()

    async def close(self) -> None:
        await self._pool.close()

    async def put(self, number: int) -> None:
        await self._queries.enqueue("job", b"%d" % number)

    async def put_many(self, numbers: Sequence[int]) -> None:
        payloads = [b"%d" % number for number in numbers]
        await self._queries.enqueue(["job"] * len(payloads), payloads, [0] * len(payloads))

    def work(self, concurrency: int) -> None:
        async def main() -> None:
            connection = await import_module("asyncpg").connect(self.url)
            queuer: Any = import_module("pgqueuer").PgQueuer.from_asyncpg_connection(connection)

            async def job(job: Any) -> None:
                self.note(int(job.payload))

            queuer.entrypoint("job", accepts_context=False)(job)
            await queuer.run(batch_size=concurrency)

        import_module("uvloop").run(main())


class Procrastinate(Library):
    """Callers and the worker have a pool of connections each."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        module: Any = import_module("procrastinate")
        self._app = module.App(connector=module.PsycopgConnector(conninfo=self.url))

        async def job(number: int) -> None:
            self.note(number)

        self._job = self._app.task(name="job")(job)

    async def open(self) -> None:
        await self._app.open_async()
        await self._app.schema_manager.apply_schema_async()

    async def close(self) -> None:
        await self._app.close_async()

    async def put(self, number: int) -> None:
        await self._job.defer_async(number=number)

    async def put_many(self, numbers: Sequence[int]) -> None:
        await self._job.batch_defer_async(*({"number": number} for number in numbers))

    def work(self, concurrency: int) -> None:
        async def main() -> None:
            async with self._app.open_async():
                await self._app.run_worker_async(
                    concurrency=concurrency, install_signal_handlers=False
                )

        asyncio.run(main())


class Saq(Library):
    """On PostgreSQL and on Redis."""

    _queue: Any

    async def open(self) -> None:
        self._queue = import_module("saq").Queue.from_url(self.url)
        await self._queue.connect()

    async def close(self) -> None:
        await self._queue.disconnect()

    async def put(self, number: int) -> None:
        await self._queue.enqueue("job", number=number)

    def work(self, concurrency: int) -> None:
        async def job(context: Any, *, number: int) -> None:
            del context
            self.note(number)

        async def main() -> None:
            await self.open()
            functions = [("job", job)]
            worker: Any = import_module("saq").Worker(
                self._queue, functions, concurrency=concurrency
            )
            await worker.start()

        asyncio.run(main())


class BullMQ(Library):
    """On PostgreSQL and on Redis."""

    _queue: Any

    def _settings(self) -> dict[str, Any]:
        postgres = {"backend": "postgres"} if self.url.startswith("postgresql:") else {}
        return {"connection": self.url, **postgres}

    async def open(self) -> None:
        self._queue = import_module("bullmq").Queue("jobs", self._settings())

    async def close(self) -> None:
        await self._queue.close()

    async def put(self, number: int) -> None:
        await self._queue.add("job", {"number": number})

    async def put_many(self, numbers: Sequence[int]) -> None:
        await self._queue.addBulk(
            [{"name": "job", "data": {"number": number}} for number in numbers]
        )

    def work(self, concurrency: int) -> None:
        async def job(job: Any, token: str) -> None:
            del token
            self.note(job.data["number"])

        async def main() -> None:
            settings = {**self._settings(), "concurrency": concurrency}
            worker = import_module("bullmq").Worker("jobs", job, settings)
            await asyncio.Event().wait()
            del worker

        asyncio.run(main())
