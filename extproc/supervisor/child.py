"""One process under a supervisor: `python -m extproc.supervisor.child DESCRIPTOR`, its end of the channel.

It serves what the supervisor's first message says, stops in order at SIGTERM, and ends at once when the channel does.
Exit status: 0 after a signal, 1 if it cannot serve or the supervisor is gone.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from typing import cast

import uvloop

from extproc.cli.logs import configure_logs
from extproc.config.resolve import ResolveError
from extproc.config.schema import Config
from extproc.discovery.roster import static_roster
from extproc.gateway.processor import Processor
from extproc.supervisor.channel import Channel, Failed, Ready, Start, Started, Told, ToProcess, Workers
from extproc.supervisor.process import StopSignals, serve_until_stopped, stopped_at_the_end
from extproc.transport.listening import ListenError
from extproc.transport.serving import TransportName


async def run(end: socket.socket) -> int:
    """Serve; returns the exit status."""
    signals = StopSignals()
    channel: Channel[ToProcess] = await Channel.open(end, ToProcess)
    start = await channel.receive()
    if not isinstance(start, Start):
        return 1
    config = Config.model_validate_json(start.config)
    configure_logs(config.log.level, config.log.format, process=start.process)
    processor = Processor(
        config,
        cast(TransportName, start.transport),
        process=start.process,
        ready_changed=lambda: _tell_readiness(channel, processor),
        roster=start.roster if start.roster is not None else static_roster(config),
    )
    listening = asyncio.create_task(_listen(channel, processor))
    try:
        async with stopped_at_the_end(processor):
            await processor.start()
            channel.send(Started())
            _tell_readiness(channel, processor)
            await serve_until_stopped(processor, signals, start.settle_s, config.limits.drain_s)
    except (ResolveError, ListenError, OSError) as error:
        channel.send(Failed(str(error)))
        await channel.drain()
        return 1
    finally:
        listening.cancel()
        channel.close()
    return 0


def _tell_readiness(channel: Channel[ToProcess], processor: Processor) -> None:
    readiness = processor.ready_now()
    channel.send(Ready(readiness.ready, readiness.detail))


async def _listen(channel: Channel[ToProcess], processor: Processor) -> None:
    while True:
        message = await channel.receive()
        if message is None:
            # Nobody would restart or stop us any more: the supervisor was killed.
            os._exit(1)
        if isinstance(message, Start):
            continue
        if isinstance(message, Workers):
            processor.apply(message.roster)
            continue
        for family in processor.families():
            channel.send(Told(message.number, family))
            await asyncio.sleep(0)  # requests first
        channel.send(Told(message.number, None))
        await channel.drain()


def main(descriptor: int) -> int:
    """Run as the module's description says."""
    end = socket.socket(fileno=descriptor)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(run(end))


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
