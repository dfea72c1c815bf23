"""Where the time went: forwards on a clock, a window to move over them, and what decoding would be without a part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import ipywidgets as widgets

from dynatree_lib.checks import of_kind

from .. import charts
from ..bench.trace import iteration_means
from ..charts import clock
from .walk import Explorer, line, put, shown_table, slider, watch

MILLISECOND = 1e-3


class Timeline(Explorer):
    """Traced runs of several methods on one clock, and the mean iteration of each as a table.

    Args:
        events: label -> events of a traced run with at least two iterations (`trace.traced_runs`, `records.Split`).

    Attributes:
        first: slider; iterations before the window.
        length: slider; milliseconds that the window shows.
        without: part of an iteration -> checkbox; the table's speed leaves the part out.

    Raises:
        TypeError: for what is no mapping.
        ValueError: without methods, or for a run of fewer than two iterations.
    """

    def __init__(self, events: Mapping[str, Sequence[Sequence[Any]]]) -> None:
        of_kind("What is shown", events, Mapping, "give {label: events, ...}, as bench.trace.traced_runs returns it")
        if not events:
            raise ValueError("There are no traced runs to show; make some with dynatree_suite.bench.trace.traced_runs.")
        self.events = events
        self.means = {label: iteration_means(run) for label, run in events.items()}
        longest = max(_milliseconds(mean) for mean in self.means.values())
        most = int(min(mean["iterations"] for mean in self.means.values()))
        self.first = slider("iterations before", 1, 0, most)
        self.length = slider("milliseconds shown", round(clock.SHOWN * longest) + 1, 1, round(12 * longest) + 2)
        names = {"draft": "without drafting", "host": "without the host"}
        self.without = {part: widgets.Checkbox(description=name, indent=False) for part, name in names.items()}
        self.clock, self.table = widgets.Output(), widgets.HTML()
        super().__init__([line(self.first, self.length), self.clock, line(*self.without.values()), self.table])
        watch(self.draw, self.first, self.length)
        watch(self.count, *self.without.values())

    def draw(self) -> None:
        """Draw the window that the sliders choose."""
        window = {"after": self.first.value, "steps": self.length.value, "unit": "milliseconds"}
        put(self.clock, charts.iteration_timeline(self.events, MILLISECOND, **window))

    def count(self) -> None:
        """Write the table, its speed without the parts that are ticked."""
        left_out = [part for part, box in self.without.items() if box.value]
        speed = "tokens/s" + (f" without {' and '.join(left_out)}" if left_out else "")
        lines = []
        for label, mean in self.means.items():
            row = {"method": label, "tokens/iteration": mean["tokens"]}
            row |= {f"{part}, ms": mean[part] / MILLISECOND for part in clock.PARTS}
            lines.append(row | {speed: 1000 * mean["tokens"] / _milliseconds(mean, left_out)})
        caption = "The mean iteration of each run, without the one that reads the prompt. Tracing counts as host."
        self.table.value = shown_table(lines, caption)


def _milliseconds(mean: Mapping[str, float], left_out: Sequence[str] = ()) -> float:
    return sum(mean[part] for part in clock.PARTS if part not in left_out) / MILLISECOND
