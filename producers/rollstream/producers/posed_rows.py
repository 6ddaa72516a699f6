"""The rows that a producer poses, and where it is in them: all in the source's order, or what a curriculum chooses."""

import math
from collections.abc import Collection, Iterator
from dataclasses import replace

from rollstream.producers import metrics
from rollstream.producers.curriculum import Curriculum
from rollstream.producers.foreign import LOOKED_BACK_ROWS
from rollstream.producers.numbering import (
    NumberedRow,
    Pass,
    RowPlace,
    chosen_rows,
    group_of_row,
    last_position,
    numbered_rows,
    place_after,
)
from rollstream.producers.settings import ProducerSettings
from rollstream.producers.sources.protocol import PromptRow, Source
from rollstream.schemas.errors import ConfigurationError
from rollstream.schemas.ids import group_id
from rollstream.schemas.ledger import ClosedGroup
from rollstream.schemas.producer import ProducerProgress

# Hardly a group is open for longer than so many passes.
_LOOKED_BACK_PASSES = 8


class PosedRows:
    """Gives rows from `place` on. Without a curriculum there is one pass, over all epochs."""

    def __init__(self, settings: ProducerSettings, source: Source) -> None:
        """Raises `ConfigurationError` if the source has no end, and a curriculum is wanted."""
        if settings.curriculum is not None and source.num_rows is None:
            raise ConfigurationError(
                f"{source.dataset} is endless, so no task comes again and a curriculum has nothing to choose from: "
                "leave [producer.curriculum] out, or take a source with an end"
            )
        self._settings = settings
        self._source = source
        self.place = RowPlace()
        self._curriculum: Curriculum | None = None

    def go_on_from(self, own: ProducerProgress | None, earlier: ProducerProgress | None) -> None:
        """Go on where this producer was, see `place_after`. Once a curriculum chose rows, passes go on without one."""
        source, settings = self._source, self._settings
        self.place = place_after(own, source.dataset, settings.seed, earlier=earlier)
        if source.num_rows is None or (settings.curriculum is None and self.place.of_pass is None):
            self.place = replace(self.place, of_pass=None)
            return
        tasks = (row.task for row in source.rows(0, 0))
        self._curriculum = Curriculum(settings.curriculum, tasks, seed=settings.seed)
        # As for the place: of another source anybody may have written.
        newest = own if earlier is None else earlier
        state = None if newest is None else newest.curriculum
        if not self._curriculum.restore(state, source.dataset, self.place.of_pass):
            self._begin_pass()
        if own is not None:
            self._find({*own.open_groups, *own.recently_closed})

    def rows(self) -> Iterator[NumberedRow]:
        """The rows of this pass, from `place` on."""
        if self._curriculum is not None:
            return self._expected() if self._has_pass else iter(())
        stop_before = last_position(self._source, epochs=self._settings.epochs, num_prompts=self._settings.num_prompts)
        return numbered_rows(self._source, self.place, stop_before=stop_before)

    def begin_next_pass(self) -> bool:
        """Begin the next pass; whether there is one. It must be noted before anything of it is submitted."""
        if self._curriculum is None or not self._has_pass:
            return False
        self._begin_pass()
        return self._has_pass

    def found_earlier(self, groups: Collection[str]) -> set[str]:
        """Those of the groups that the rows shortly before the place have; with a curriculum, any row lately."""
        if self._curriculum is not None:
            return {group for group in groups if self._curriculum.knows(group)}
        last = self.place.position
        first = RowPlace(position=max(0, last - LOOKED_BACK_ROWS))
        rows = numbered_rows(self._source, first, stop_before=last)
        return {group_of_row(row, self._settings.run) for row in rows}.intersection(groups)

    def submitted(self, row: PromptRow) -> None:
        """Count a prompt of the row."""
        if self._curriculum is not None:
            metrics.POOL_PROMPTS.labels(pool=self._curriculum.pool_of(row.task)).inc()

    def note(self, group: ClosedGroup) -> None:
        """Take in how one of its groups closed."""
        if self._curriculum is not None:
            self._curriculum.note(group.group_id, group.reward_mean)

    def sizes(self) -> dict[str, int]:
        """Tasks in each pool; empty without a curriculum."""
        return {} if self._curriculum is None else self._curriculum.sizes()

    def state(self) -> bytes | None:
        """What `ProducerProgress` holds of the curriculum."""
        if self._curriculum is None or self.place.of_pass is None:
            return None
        return self._curriculum.state(self._source.dataset, self.place.of_pass)

    @property
    def _has_pass(self) -> bool:
        """Whether there are rows left for the pass of `place`."""
        epochs, num_prompts = self._settings.epochs, self._settings.num_prompts
        of_pass = self.place.of_pass
        return (
            of_pass is not None
            and (epochs is None or of_pass.epoch < epochs)
            and (num_prompts is None or self.place.position < num_prompts)
        )

    def _begin_pass(self) -> None:
        assert self._curriculum is not None
        assert self._source.num_rows is not None
        position, before = self.place.position, self.place.of_pass
        # Without a pass before, the rows of a whole epoch may have been posed in part.
        epoch = math.ceil(position / self._source.num_rows) if before is None else before.epoch + 1
        self.place = replace(self.place, of_pass=Pass(epoch, position))
        self._curriculum.begin_pass()

    def _expected(self) -> Iterator[NumberedRow]:
        assert self._curriculum is not None
        for row in self._chosen(self.place):
            self._curriculum.expect(group_of_row(row, self._settings.run), row.row.task)
            yield row

    def _chosen(self, first: RowPlace) -> Iterator[NumberedRow]:
        curriculum = self._curriculum
        assert curriculum is not None
        return chosen_rows(
            self._source, first, lambda row, epoch: curriculum.is_posed(row.task, epoch),
            stop_before=self._settings.num_prompts,
        )  # fmt: skip

    def _find(self, groups: Collection[str]) -> None:
        """Find out of which tasks these groups are."""
        if self._curriculum is None or self.place.of_pass is None or not groups:
            return
        newest = self.place.of_pass.epoch
        epochs = range(max(0, newest - _LOOKED_BACK_PASSES), newest + 1)
        for row in self._source.rows(0, 0):
            for group in (group_id(self._settings.run, row.prompt_id, epoch) for epoch in epochs):
                if group in groups:
                    self._curriculum.expect(group, row.task)
