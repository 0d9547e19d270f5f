"""How long a stage still takes, from the pace at which it was seen to advance."""

import time
from dataclasses import dataclass

from cel_core.records import SearchRecord


@dataclass
class Pace:
    """When a search's present stage was first seen, and how far it was then."""

    stage: str = ""
    done: int = 0
    at_s: float = 0.0

    def left_s(self, record: SearchRecord) -> float | None:
        """Seconds left in this stage; None while there is no pace yet."""
        now = time.monotonic()
        if record.stage != self.stage or record.done < self.done:
            self.stage, self.done, self.at_s = record.stage, record.done, now
        made = record.done - self.done
        return (record.total - record.done) * (now - self.at_s) / made if made and record.total else None
