-- Views for DuckDB over an archive: each record counts once, with what became of it. Read them in the directory of the
-- archive, or say before where it is: SET VARIABLE archive = 'path/to/archive';

CREATE OR REPLACE MACRO archived(name) AS TABLE
  FROM read_parquet(coalesce(getvariable('archive'), '.') || '/' || name || '/*.parquet', union_by_name = true);

-- Entries of the ledger. A restart or rollback cuts all entries after the one that made its parent's version: one
-- survives unless a later one that counts goes back behind it.
CREATE OR REPLACE VIEW steps AS
  WITH newest AS (
    SELECT ledger_offset, arg_max(counts, known_at) AS counts FROM archived('passed_over') GROUP BY ledger_offset
  ), entries AS (
    SELECT entries.*, kind <> 'skip' AND coalesce(counts, true) AS counts
    FROM (SELECT DISTINCT ON (ledger_offset) * FROM archived('steps')) AS entries LEFT JOIN newest USING (ledger_offset)
  ), cuts AS (
    SELECT *, min(parent_version) FILTER (counts AND kind IN ('restart', 'rollback')) OVER (
      ORDER BY ledger_offset ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING) AS back_to
    FROM entries
  )
  SELECT * EXCLUDE (counts, back_to), counts AND (
      back_to IS NULL OR weight_version < back_to OR (weight_version = back_to AND kind <> 'drops')) AS survives
  FROM cuts ORDER BY ledger_offset;

-- Closings of groups. `survives`: its entry survives, and is the first such that closes the group.
CREATE OR REPLACE VIEW groups AS
  SELECT closings.* EXCLUDE (is_on), is_on AND 1 = row_number() OVER (
    PARTITION BY group_id ORDER BY is_on DESC, ledger_offset) AS survives
  FROM (
    SELECT found.*, steps.survives AS is_on
    FROM (SELECT DISTINCT ON (ledger_offset, group_id) * FROM archived('groups')) AS found
    JOIN steps USING (ledger_offset)
  ) AS closings;

-- Rollouts, each once: the record that a step used, else the first. `outcome`: of its group, open while nothing closed it.
CREATE OR REPLACE VIEW rollouts AS
  WITH outcomes AS (FROM groups WHERE survives),
  used AS (SELECT one."partition", one."offset" FROM (SELECT unnest(trained) AS one FROM outcomes))
  SELECT samples.*, coalesce(outcome, 'open') AS outcome, coalesce(reason, '') AS reason,
    ("partition", "offset") IN (SELECT ("partition", "offset") FROM used) AS trained,
    trained_step, closed_in_step, ledger_offset AS closed_by
  FROM archived('rollouts') AS samples LEFT JOIN
    (SELECT group_id, outcome, reason, trained_step, closed_in_step, ledger_offset FROM outcomes) AS closed USING (group_id)
  QUALIFY 1 = row_number() OVER (PARTITION BY rollout_id ORDER BY trained DESC, "partition", "offset");

-- Prompts, each group once.
CREATE OR REPLACE VIEW prompts AS
  FROM archived('prompts') QUALIFY 1 = row_number() OVER (PARTITION BY group_id ORDER BY "partition", "offset");
