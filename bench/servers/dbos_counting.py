"""DBOS at the work of agents that count, on SQLite: `dbos_counting.py FOLDER`, in an environment of its own.

A request is a workflow with one step that counts: its input, the step's output and the result are stored.
"""

import asyncio
import sys

from at_work import orders, repeated
from dbos import DBOS

DBOS(
    config={
        "name": "bench",
        "system_database_url": f"sqlite:///{sys.argv[1]}/dbos.sqlite",
        "log_level": "ERROR",
        "run_admin_server": False,
    }
)
counts: dict[str, int] = {}


@DBOS.step()
async def count(agent: str) -> int:
    counts[agent] = counts.get(agent, 0) + 1
    return counts[agent]


@DBOS.workflow()
async def handle(agent: str, number: int) -> int:
    return await count(agent)


async def main() -> None:
    for order in orders():

        async def send(number: int, among: int = order["agents"]) -> None:
            workflow = await DBOS.start_workflow_async(handle, f"a-{number % among}", number)
            await workflow.get_result()

        await repeated(send, order["senders"], order["seconds"])


if __name__ == "__main__":
    DBOS.launch()
    asyncio.run(main())
    DBOS.destroy()
