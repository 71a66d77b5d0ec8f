-- name: cancel_idle
-- Those of these jobs that do not run become cancelled records; returns their ids.
with gone as (
  delete from $schema.job j
  using unnest(%(id)s::uuid[], %(reason)s::text[]) as wanted (id, reason)
  where j.id = wanted.id and j.namespace = %(namespace)s and j.state <> 'running'
  returning j.*, wanted.reason
),
kept as (
  insert into $schema.record (id, namespace, queue, kind, task, type, state, priority, content_type,
                              body, created, not_before, expires, attempt, deaths, max_deaths,
                              unique_key, traceparent, headers, fence, claimed, attempts, finished,
                              reason)
  select id, namespace, coalesce(slots -> -1 ->> 'home', queue), kind, task, type, 'cancelled',
         priority, content_type, body, created,
         not_before, expires, attempt, deaths, max_deaths, unique_key, traceparent, headers, fence,
         claimed, attempts, statement_timestamp(), reason
  from gone
  on conflict (id) do nothing
),
told as (
  select count(pg_notify('$channel', 'd:' || namespace || ':' || ids)) as times
  from (select namespace, string_agg(id::text, ',') as ids
        from (select namespace, id, row_number() over () / 200 as chunk from gone where awaited) w
        group by namespace, chunk) d
)
select id::text, (select times from told) from gone

-- name: settings
-- Plans that stay right while the hot table swings from empty to millions of rows and back: every
-- statement of ours knows its index. For this connection, or for this transaction only.
select set_config(name, setting, %(local)s)
from (values ('plan_cache_mode', 'force_generic_plan'), ('jit', 'off'), ('enable_seqscan', 'off'),
             ('enable_bitmapscan', 'off'), ('enable_sort', 'off'), ('enable_hashjoin', 'off'),
             ('enable_mergejoin', 'off')) as s (name, setting)

-- name: probe
-- Sends a hint to ourselves.
select pg_notify('$channel', %(payload)s)

-- name: listen
-- Hints of everybody arrive on this connection from now on.
listen "$channel"

-- name: known_schema
-- Whether the schema, and in it the list of migrations, is there.
select to_regnamespace('$schema') is not null, to_regclass('$schema.migration') is not null

-- name: create_schema
-- A room of our own in the database.
create schema $schema

-- name: create_migration
-- The list of what was applied.
create table $schema.migration (
  number integer primary key,
  applied_at timestamptz not null default statement_timestamp()
)

-- name: lock_migrations
-- One process migrates at a time; the others wait.
select pg_advisory_xact_lock(hashtextextended('$channel', 0))

-- name: version
-- The number of the newest migration applied.
select max(number) from $schema.migration

-- name: applied
-- Notes a migration.
insert into $schema.migration (number) values (%(number)s)
