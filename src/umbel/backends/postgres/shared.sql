-- name: cancel_idle
-- Turns those of these jobs that do not run into cancelled or buried records. Returns their ids.
with gone as (
  delete from $schema.job j
  where j.id = any(%(id)s::uuid[]) and j.namespace = %(namespace)s and j.state <> 'running'
  returning j.*
),
kept as (
  insert into $schema.record (id, namespace, queue, kind, task, type, state, priority, content_type,
                              body, created, not_before, expires, attempt, deaths, max_deaths,
                              unique_key, traceparent, headers, fence, claimed, attempts, finished,
                              reason)
  select id, namespace, coalesce(slots -> -1 ->> 'home', queue), kind, task, type, %(final)s,
         priority, content_type, body, created,
         not_before, expires, attempt, deaths, max_deaths, unique_key, traceparent, headers, fence,
         claimed, attempts, statement_timestamp(), %(reason)s::text
  from gone
  on conflict (id, namespace) do nothing
),
told as (
  select count(pg_notify('$channel', 'd:' || namespace || ':' || ids)) as times
  from (select namespace, string_agg(id::text, ',') as ids
        from (select namespace, id, row_number() over () / 200 as chunk from gone where awaited) w
        group by namespace, chunk) d
)
select id::text, (select times from told) from gone

-- name: report_lapses
-- Records that the process of these incarnations was alive when their leases lapsed. Deletes deaths
-- and reports older than a day. take_back_deaths follows as a statement of its own: it sees a
-- recovery that counts a death at the same time, or that recovery sees this report and takes the
-- death back itself.
with old_deaths as (
  delete from $schema.death where counted < statement_timestamp() - interval '1 day'
),
old_lapses as (
  delete from $schema.lapse where reported < statement_timestamp() - interval '1 day'
)
insert into $schema.lapse (incarnation, namespace)
select former, %(namespace)s from unnest(%(former)s::text[]) former
on conflict (incarnation) do nothing

-- name: take_back_deaths
-- Counts deaths of reported incarnations as lapses instead. Queues a job again that was buried for
-- its deaths and would not have been without these. A job that may die only once stays buried,
-- because it has started. A unique key that another job holds now is lost. Rows that another
-- transaction has locked are skipped until the next call.
with none as materialized (
  select d.incarnation, d.job, d.blamed
  from $schema.lapse l join $schema.death d on d.incarnation = l.incarnation
  where l.namespace = %(namespace)s and d.namespace = %(namespace)s
  order by d.incarnation, d.job for update of d skip locked
),
less as materialized (
  select job, count(*)::integer as times, sum(blamed)::integer as blamed from none group by job
),
live as (
  update $schema.job j
  set deaths = greatest(j.deaths - less.times, 0), blame = greatest(j.blame - less.blamed, 0),
      lapses = j.lapses + less.times
  from less where j.id = less.job and j.namespace = %(namespace)s
  returning j.id
),
risen as (
  delete from $schema.record r using less
  where r.id = less.job and r.namespace = %(namespace)s and r.state = 'buried'
    and starts_with(r.reason, 'poison: ') and r.max_deaths > 1 and less.blamed > 0
    and not exists (select 1 from $schema.job j where j.id = r.id and j.namespace = r.namespace)
  returning r.*, less.times, less.blamed
),
back as (
  insert into $schema.job (id, namespace, queue, kind, task, type, state, priority, content_type,
                           body, created, expires, attempt, deaths, blame, lapses, max_deaths,
                           unique_key, traceparent, headers, fence, attempts, steps, received, part)
  select id, namespace, queue, kind, task, type, 'queued', priority, content_type, body, created,
         expires, attempt, greatest(deaths - times, 0), greatest(max_deaths - blamed, 0),
         lapses + times, max_deaths,
         case when not exists (select 1 from $schema.job j
                               where j.namespace = risen.namespace and j.unique_key = risen.unique_key)
              then unique_key end,
         traceparent, headers, fence, attempts,
         exists (select 1 from $schema.step s
                 where s.job = risen.id and s.namespace = risen.namespace),
         starts_with(queue, 'worker-'),
         exists (select 1 from $schema.job_edge e
                 where e.job = risen.id and e.namespace = risen.namespace)
  from risen
  returning id, queue
),
finished as (
  update $schema.record r
  set deaths = greatest(r.deaths - less.times, 0), lapses = r.lapses + less.times
  from less
  where r.id = less.job and r.namespace = %(namespace)s
    and not (r.state = 'buried' and starts_with(r.reason, 'poison: ') and r.max_deaths > 1
             and less.blamed > 0)
  returning r.id
),
settled as (
  delete from $schema.death d using none
  where d.incarnation = none.incarnation and d.job = none.job
    and d.job in (select id from live union all select id from back union all select id from finished)
)
select count(pg_notify('$channel', 'r:' || %(namespace)s || ':' || queue))
from (select distinct queue from back) b

-- name: settings
-- Settings for plans that stay right while the job table changes between empty and millions of
-- rows: every statement has its index. For this connection, or for this transaction only.
select set_config(name, setting, %(local)s)
from (values ('plan_cache_mode', 'force_generic_plan'), ('jit', 'off'), ('enable_seqscan', 'off'),
             ('enable_bitmapscan', 'off'), ('enable_sort', 'off'), ('enable_hashjoin', 'off'),
             ('enable_mergejoin', 'off')) as s (name, setting)
union all
-- A client that gives up leaves its statement on the server, which must not wait for others, either.
select set_config('lock_timeout', '9s', false) where not %(local)s

-- name: origin
-- Identifies the database, and returns whether the role may write the tables of a schema; null if
-- there are none. It fails in no database and for no role, so the caller's transaction stays
-- usable.
select (extract(epoch from pg_postmaster_start_time()) * 1000000)::bigint,
       d.oid::bigint, d.datname::text, host(inet_server_addr()), current_setting('port')::integer,
       current_user::text,
       (select has_schema_privilege(n.oid, 'usage') and has_table_privilege(c.oid, 'insert')
        from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace
        where n.nspname = %(schema)s and c.relname = 'job')
from pg_catalog.pg_database d where d.datname = current_database()

-- name: probe
-- Sends a notification to the own connection.
select pg_notify('$channel', %(payload)s)

-- name: listen
-- Delivers notifications to this connection from now on, and says so in pg_stat_activity.
listen "$channel";
select set_config('application_name', current_setting('application_name') || ' listening', false)

-- name: known_schema
-- Whether the schema exists, and whether its list of migrations does.
select to_regnamespace('$schema') is not null, to_regclass('$schema.migration') is not null

-- name: create_schema
-- Creates Umbel's schema.
create schema $schema

-- name: create_migration
-- Creates the list of applied migrations.
create table $schema.migration (
  number integer primary key,
  applied_at timestamptz not null default statement_timestamp()
)

-- name: lock_migrations
-- Lets only one process at a time migrate.
select pg_advisory_xact_lock(hashtextextended('$channel', 0))

-- name: version
-- The number of the last migration applied.
select max(number) from $schema.migration

-- name: applied
-- Records a migration as applied.
insert into $schema.migration (number) values (%(number)s)
