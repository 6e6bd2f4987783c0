"""A worker that is added at the one address is known to every process, also to one that is started later."""

from __future__ import annotations

from pathlib import Path

from e2e.stack import INSTANT, eventually
from supervisor_command import kill, serving, write_config

from extproc.simulator.fleet import start_engines
from extproc.simulator.spec import EngineSpec


async def test_all_processes_learn_of_a_worker_and_forget_it(tmp_path: Path) -> None:
    (engine,) = await start_engines([EngineSpec(**INSTANT)])
    file, values = write_config(tmp_path, health={"interval_s": 0.2})
    url = f"http://{values['listen']['metrics']}/workers"
    address = engine.address
    try:
        async with serving(file, values) as running:
            known = [each["address"] for each in (await running.http.get(url)).json()["workers"]]
            assert known == ["127.0.0.1:1"]
            added = await running.http.post(url, json={"pool": "main", "address": address, "name": "new"})
            assert added.status_code == 202

            async def ready_in_both() -> bool:
                return await running.total("extproc_worker_state", worker="new", state="ready") == 2

            await eventually(ready_in_both, "both processes know the new worker", 20.0)
            listed = {each["name"]: each["state"] for each in (await running.http.get(url)).json()["workers"]}
            assert listed == {"127.0.0.1:1": "not_ready", "new": "ready"}
            assert address.rpartition(":")[2] in (tmp_path / "xds" / "eds" / "main.yaml").read_text()

            first = (await running.processes())[0]["pid"]
            kill(first)

            async def another() -> bool:
                return first not in [each["pid"] for each in await running.processes()]

            await eventually(another, "another process in its place", 20.0)
            await eventually(running.all_ready, "it serves", 20.0)
            await eventually(ready_in_both, "it knows the new worker too", 20.0)

            assert (await running.http.delete(f"{url}/main/{address}")).status_code == 202

            async def forgotten() -> bool:
                return address not in (await running.http.get(url)).text

            await eventually(forgotten, "the worker gone", 20.0)
            assert await running.total("extproc_worker_state", worker="new") == 0
    finally:
        await engine.stop()
