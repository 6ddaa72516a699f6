"""`filter-difficulty`: divides the problems of a scored file by how hard they are.

Two passes over the file: the first adds up each problem's rewards, the second writes its rows to its bucket's file.
Nothing that a program could read is there before it is whole, and the summary comes last: where it is, all is. A run
that was killed begins anew when the same command is run again: it asks no model and no reward function, and what it
adds up lies in a table that ends with its process.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from rollstream.offline.difficulty.buckets import (
    Cuts,
    Measure,
    adaptive_cuts,
    percentile_cuts,
)
from rollstream.offline.difficulty.judged_row import JudgedRow, RowJudge
from rollstream.offline.difficulty.problems import Problems
from rollstream.offline.difficulty.report import ALL_BUCKETS, BucketTotals, FilterReport, summary_of, write_metrics
from rollstream.offline.options import DifficultyOptions, Strategy
from rollstream.process.crash_points import crash_point
from rollstream.process.files import held, replace_text
from rollstream.rows.open import open_rows
from rollstream.rows.row import BadRow, ReadRow, RowSource
from rollstream.rows.write import Kind, RowWriter, remove_output, write_rows
from rollstream.schemas.errors import ConfigurationError, DecodeError

OnRows = Callable[[int], None]

_KINDS: Final[tuple[Kind, ...]] = ("jsonl", "parquet")


def filter_difficulty(options: DifficultyOptions, on_rows: OnRows = lambda number: None) -> FilterReport:
    """Divide the problems; `on_rows` is told of the rows of each of the two passes.

    Raises `ConfigurationError` if the file has no rewards, none of its samples can be judged as the strategy asks, or
    another process writes the same files.
    """
    source = open_rows(options.data_path)
    _refuse_own_file(options)
    with held(_summary(options)), Problems() as problems:
        report = FilterReport(options.bucketing_strategy, None, BucketTotals(), options.min_samples, [])
        problems.note(_judged(source, _judge(options), report, on_rows))
        problems.add_up(min_samples=options.min_samples, by_pass=options.bucketing_strategy is Strategy.PASS_RATE)
        report.cuts = _cuts(problems, options, report.notes)
        if report.cuts is not None:
            problems.divide(report.cuts)
        _write(source, problems, options, report, on_rows)
    return report


def _judge(options: DifficultyOptions) -> RowJudge:
    return RowJudge(id_column=options.id_column, pass_threshold=options.pass_threshold)


def _summary(options: DifficultyOptions) -> Path:
    return options.folder / f"summary_{options.bucketing_strategy}.json"


def _kind(options: DifficultyOptions) -> Kind:
    return "jsonl" if options.data_path.suffix == ".jsonl" else "parquet"


def _paths(options: DifficultyOptions, kind: Kind) -> dict[str, Path]:
    """The file of each bucket."""
    return {bucket: options.folder / f"rollouts_{bucket}_{options.bucketing_strategy}.{kind}" for bucket in ALL_BUCKETS}


def _all_paths(options: DifficultyOptions) -> list[Path]:
    """The files of all buckets in both formats: those of the other one are of a run on other data."""
    return [path for kind in _KINDS for path in _paths(options, kind).values()]


def _refuse_own_file(options: DifficultyOptions) -> None:
    """A file of an earlier run would be replaced, or removed, by this one."""
    if options.data_path.resolve() in [path.resolve() for path in _all_paths(options)]:
        raise ConfigurationError(
            f"{options.data_path} is a file that this command would replace: name another place with --output_dir"
        )


def _judged(source: RowSource, judge: RowJudge, report: FilterReport, on_rows: OnRows) -> Iterator[JudgedRow]:
    has_rewards = has_judged = False
    for row in source:
        on_rows(1)
        report.num_rows += 1
        if isinstance(row, BadRow):
            report.bad_rows.add(f"unreadable: {row.why}", row.where)
            continue
        has_rewards = has_rewards or "reward" in row.fields
        try:
            judged = judge.judged(row.fields)
        except DecodeError as error:
            report.bad_rows.add(f"no_problem: {error}", row.where)
            continue
        if judged.unscored is not None:
            report.unscored.add(judged.unscored, row.where)
        has_judged = has_judged or judged.passed is not None
        yield judged
    if not has_rewards:
        raise ConfigurationError(f"{source.name} has no column `reward`: score it first, with `analyze-rewards`")
    if report.bad_rows.total == report.num_rows:
        raise ConfigurationError(
            f"none of the {report.num_rows} rows can be used: {'; '.join(report.bad_rows.lines())}"
        )
    if report.strategy is Strategy.PASS_RATE and not has_judged:
        raise ConfigurationError(
            "pass_rate needs to know when a sample passes, but no row of the file has a value in `passed`, and none of "
            "its data sources has a threshold of its own: say the smallest reward that passes with --pass_threshold"
        )


def _cuts(problems: Problems, options: DifficultyOptions, notes: list[str]) -> Cuts | None:
    """Where the buckets end; None if every problem is unknown."""
    lowest, highest, num_different = problems.score_range()
    num_known = problems.num_known()
    if not num_known:
        notes.append(f"no problem has {options.min_samples} scored samples, so all are unknown")
        return None
    if num_different == 1 and num_known > 1:
        notes.append(f"all problems have the same difficulty score, {lowest:g}: their order says nothing")
    match options.bucketing_strategy:
        case Strategy.PERCENTILE:
            return percentile_cuts(problems.scores(), num_known, options.percentiles)
        case Strategy.PASS_RATE:
            return Cuts(Measure.PASS_RATE, options.pass_rate_thresholds)
        case Strategy.ADAPTIVE:
            found = adaptive_cuts(problems.scores(), lowest, highest, num_different)
            if found is not None:
                return found
            notes.append(f"{num_different} different scores make no four clusters: divided as mean_reward does")
    return Cuts(Measure.MEAN, options.mean_reward_thresholds)


def _write(
    source: RowSource, problems: Problems, options: DifficultyOptions, report: FilterReport, on_rows: OnRows
) -> None:
    folder, strategy, kind = options.folder, options.bucketing_strategy, _kind(options)
    paths = _paths(options, kind)
    summary = _summary(options)
    remove_output(summary)
    report.files += write_metrics(folder, strategy, problems, report.totals)
    crash_point("metrics_written")
    used = [bucket for bucket in ALL_BUCKETS if report.totals.counts[bucket]]
    with ExitStack() as files:
        writers = {bucket: files.enter_context(write_rows(paths[bucket], kind)) for bucket in used}
        judge = _judge(options)
        for row in source:
            on_rows(1)
            if isinstance(row, ReadRow):
                _write_row(row, problems, judge, writers, report)
    crash_point("buckets_written")
    written = [paths[bucket] for bucket in used]
    for path in _all_paths(options):
        if path not in written:
            # Of an earlier run: its rows would count beside this one's.
            remove_output(path)
    report.files += [*written, summary]
    replace_text(summary, json.dumps(summary_of(report, source.name), indent=2, ensure_ascii=False) + "\n")


def _write_row(
    row: ReadRow, problems: Problems, judge: RowJudge, writers: dict[str, RowWriter], report: FilterReport
) -> None:
    try:
        problem = judge.problem(row.fields)
    except DecodeError:
        return
    bucket = problems.bucket_of(problem)
    if bucket is None:
        raise ConfigurationError(f"{row.where} was not there before: the file must not change while it is read")
    report.rows_by_bucket[bucket] += 1
    writers[bucket].write({**row.fields, "problem_id": problem.hex(), "difficulty_bucket": bucket})
