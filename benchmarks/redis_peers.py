"""Other queues on Redis, each used as its documentation has it. Two are in `postgres_peers`."""

import asyncio
import threading
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from benchmarks.server_workloads import Library, Note


class Arq(Library):
    _pool: Any

    def _settings(self) -> Any:
        return import_module("arq.connections").RedisSettings.from_dsn(self.url)

    async def open(self) -> None:
        self._pool = await import_module("arq").create_pool(self._settings())

    async def close(self) -> None:
        await self._pool.aclose()

    async def put(self, number: int) -> None:
        await self._pool.enqueue_job("job", number)

    def work(self, concurrency: int) -> None:
        async def job(context: Any, number: int) -> None:
            del context
            self.note(number)

        async def main() -> None:
            function = import_module("arq").func(job, name="job")
            worker: Any = import_module("arq").Worker(
                [function],
                redis_settings=self._settings(),
                max_jobs=concurrency,
                handle_signals=False,
            )
            await worker.async_run()

        asyncio.run(main())


class Streaq(Library):
    _worker: Any
    _job: Any

    def _make(self, **settings: Any) -> None:
        self._worker = import_module("streaq").Worker(redis_url=self.url, **settings)

        async def job(number: int) -> None:
            self.note(number)

        self._job = self._worker.task(job)

    async def open(self) -> None:
        self._make()
        await self._worker.__aenter__()

    async def close(self) -> None:
        await self._worker.__aexit__(None, None, None)

    async def put(self, number: int) -> None:
        await self._job.enqueue(number)

    async def put_many(self, numbers: Sequence[int]) -> None:
        await self._worker.enqueue_many([self._job.enqueue(number) for number in numbers])

    def work(self, concurrency: int) -> None:
        self._make(concurrency=concurrency)
        self._worker.run_sync()


class Taskiq(Library):
    """With its stream, where a job that is lost with its worker runs again, or with its list."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        module: Any = import_module("taskiq_redis")
        kinds = {"stream": module.RedisStreamBroker, "list": module.ListQueueBroker}
        self._broker = kinds[self.options["broker"]](url=self.url)

        async def job(number: int) -> None:
            self.note(number)

        self._job = self._broker.register_task(job, task_name="job")

    async def open(self) -> None:
        await self._broker.startup()

    async def close(self) -> None:
        await self._broker.shutdown()

    async def put(self, number: int) -> None:
        await self._job.kiq(number)

    def work(self, concurrency: int) -> None:
        run: Any = import_module("taskiq.api").run_receiver_task
        asyncio.run(run(self._broker, max_async_tasks=concurrency, run_startup=True))


class Dramatiq(Library):
    in_threads = True

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._broker: Any = import_module("dramatiq.brokers.redis").RedisBroker(url=self.url)

        def job(number: int) -> None:
            self.note(number)

        self._job: Any = import_module("dramatiq").actor(job, broker=self._broker)

    def put_now(self, number: int) -> None:
        self._job.send(number)

    def work(self, concurrency: int) -> None:
        worker: Any = import_module("dramatiq").Worker(self._broker, worker_threads=concurrency)
        worker.start()
        threading.Event().wait()


class Huey(Library):
    """A job that is lost with its worker is gone."""

    in_threads = True

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._huey: Any = import_module("huey").RedisHuey("jobs", url=self.url)

        def job(number: int) -> None:
            self.note(number)

        self._job = self._huey.task(name="job")(job)

    def put_now(self, number: int) -> None:
        self._job(number)

    def work(self, concurrency: int) -> None:
        consumer: Any = import_module("huey.consumer").Consumer(
            self._huey, workers=concurrency, periodic=False, check_worker_health=False
        )
        consumer.start()
        threading.Event().wait()


rq_note: Note


def rq_job(number: int) -> None:
    """The job of rq, which finds it by its name."""
    rq_note(number)


class Rq(Library):
    """Its simple worker, which is its fastest: the other one starts a process for each job."""

    in_threads = True

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        connection = import_module("redis").Redis.from_url(self.url)
        self._queue: Any = import_module("rq").Queue(connection=connection)

    def put_now(self, number: int) -> None:
        self._queue.enqueue(rq_job, number)

    async def put_many(self, numbers: Sequence[int]) -> None:
        prepare = import_module("rq").Queue.prepare_data
        self._queue.enqueue_many([prepare(rq_job, (number,)) for number in numbers])

    def work(self, concurrency: int) -> None:
        assert concurrency == 1
        global rq_note  # noqa: PLW0603  # it has no other way to reach the job
        rq_note = self.note
        worker: Any = import_module("rq").SimpleWorker(
            [self._queue], connection=self._queue.connection
        )
        worker.work(logging_level="WARNING")


class Docket(Library):
    _docket: Any

    async def open(self) -> None:
        self._docket = import_module("docket").Docket(name="jobs", url=self.url)
        await self._docket.__aenter__()
        self._docket.register(self.job)

    async def close(self) -> None:
        await self._docket.__aexit__(None, None, None)

    async def job(self, number: int) -> None:
        self.note(number)

    async def put(self, number: int) -> None:
        await self._docket.add(self.job)(number)

    async def put_many(self, numbers: Sequence[int]) -> None:
        call = self._docket.call  # makes the key, and so is called for each job
        await self._docket.add_many([call(self.job)(number) for number in numbers])

    def work(self, concurrency: int) -> None:
        async def main() -> None:
            await self.open()
            worker: Any = import_module("docket").Worker(self._docket, concurrency=concurrency)
            async with worker:
                await worker.run_forever()

        asyncio.run(main())
