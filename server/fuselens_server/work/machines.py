"""What machines can do, as interpreters measure it: once for each, and then it is kept."""

from __future__ import annotations

import json
import logging

from fuselens.record import plain, wire
from fuselens.record.report import Machine

from ..client.configuration import NotAllowedError, Settled
from .turns import Urgency
from .worker_pool import StartError, WorkerDiedError, WorkerPool

logger = logging.getLogger(__name__)


class Machines:
    """Asked for when a picture or a proof is the first to need it."""

    def __init__(self, configuration: Settled, pool: WorkerPool) -> None:
        self._configuration, self._pool = configuration, pool
        self._known: dict[object, Machine] = {}

    async def of(self, path: str, device: str = "cpu", urgency: Urgency = Urgency.IDLE) -> Machine | None:
        """What this machine's processors can do, or ("cuda") its card; None where that cannot be measured."""
        try:
            settings, environment = await self._configuration.settled(path)
            if (environment, device) not in self._known:
                limits = wire.Limits(settings.timeout, settings.memory_limit)
                options = {**settings.options, "device": device, "idle": urgency == Urgency.IDLE}
                request = wire.Request(0, "machine", options=options, limits=limits)
                answer = await self._pool.submit(environment, request, lambda _: None, lambda: urgency)
                if not answer.text:
                    return None
                self._known[environment, device] = plain.from_plain(Machine, json.loads(answer.text))
            return self._known[environment, device]
        except (NotAllowedError, StartError, WorkerDiedError) as error:
            logger.info("the machine was not measured: %s", error)
            return None
