"""The same API with asyncio: ten producers and a consumer as tasks."""

import asyncio
import tempfile

from penstock import aio


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with aio.open(folder) as fabric:
            jobs = await fabric.queue("jobs")
            await asyncio.gather(*(jobs.push(b"job %d" % number) for number in range(10)))
            done = 0
            async for message in jobs.consume(idle_timeout=0.2):
                done += 1
                message.ack()
            print("jobs done:", done)


if __name__ == "__main__":
    asyncio.run(main())
