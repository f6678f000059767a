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
        await self._queries.enqueue(self._entrypoint(number), b"%d" % number)

    async def put_many(self, numbers: Sequence[int]) -> None:
        payloads = [b"%d" % number for number in numbers]
        names = [self._entrypoint(number) for number in numbers]
        await self._queries.enqueue(names, payloads, [0] * len(payloads))

    def _entrypoint(self, number: int) -> str:
        keys = self.options.get("keys", 0)
        return f"job-{number % keys}" if keys else "job"

    def work(self, concurrency: int) -> None:
        async def main() -> None:
            connection = await import_module("asyncpg").connect(self.url)
            queuer: Any = import_module("pgqueuer").PgQueuer.from_asyncpg_connection(connection)

            async def job(job: Any) -> None:
                self.note(int(job.payload))

            keys = self.options.get("keys", 0)
            for key in range(keys):
                limits = {"concurrency_limit": 1, "accepts_context": False}
                queuer.entrypoint(f"job-{key}", **limits)(job)
            if not keys:
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
        await self._of_key(number % self._keys).defer_async(number=number)

    async def put_many(self, numbers: Sequence[int]) -> None:
        for key in range(self._keys):
            some = [{"number": number} for number in numbers if number % self._keys == key]
            if some:
                await self._of_key(key).batch_defer_async(*some)

    @property
    def _keys(self) -> int:
        return int(self.options.get("keys", 0)) or 1

    def _of_key(self, key: int) -> Any:
        return self._job.configure(lock=f"key-{key}") if self._keys > 1 else self._job

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

    _queues: Sequence[Any]

    def _settings(self) -> dict[str, Any]:
        postgres = {"backend": "postgres"} if self.url.startswith("postgresql:") else {}
        return {"connection": self.url, **postgres}

    @property
    def _names(self) -> list[str]:
        keys = self.options.get("keys", 0)
        return [f"jobs-{key}" for key in range(keys)] or ["jobs"]

    async def open(self) -> None:
        make = import_module("bullmq").Queue
        self._queues = [make(name, self._settings()) for name in self._names]

    async def close(self) -> None:
        for queue in self._queues:
            await queue.close()

    async def put(self, number: int) -> None:
        await self._queues[number % len(self._queues)].add("job", {"number": number})

    async def put_many(self, numbers: Sequence[int]) -> None:
        for key, queue in enumerate(self._queues):
            some = [number for number in numbers if number % len(self._queues) == key]
            jobs = [{"name": "job", "data": {"number": number}} for number in some]
            if jobs:
                await queue.addBulk(jobs)

    def work(self, concurrency: int) -> None:
        async def job(job: Any, token: str) -> None:
            del token
            self.note(job.data["number"])

        async def main() -> None:
            most = 1 if self.options.get("keys") else concurrency
            settings = {**self._settings(), "concurrency": most}
            make = import_module("bullmq").Worker
            workers = [make(name, job, settings) for name in self._names]
            await asyncio.Event().wait()
            del workers

        asyncio.run(main())
