-- name: find_live
-- One live job, and how many jobs wait before it in its lane at a gate, counted up to a thousand.
select id::text, task, namespace, queue, state, kind, priority, attempt, deaths,
       date_part('epoch', created), date_part('epoch', not_before), date_part('epoch', expires),
       date_part('epoch', claimed), null::float8, worker, content_type, body, null, null::bytea,
       null, coalesce(cancel_reason, ''), attempts::text, progress_done, progress_of, unique_key,
       traceparent, headers::text, gate, slots::text, case when state = 'waiting' then least(1000,
         (select count(*) from (
            select 1 from $schema.job b
            where b.namespace = j.namespace and b.gate = j.gate and b.queue = j.queue
              and b.kind = j.kind and b.state = 'waiting' and b.priority > j.priority limit 1000) f) +
         (select count(*) from (
            select 1 from $schema.job b
            where b.namespace = j.namespace and b.gate = j.gate and b.queue = j.queue
              and b.kind = j.kind and b.state = 'waiting' and b.priority = j.priority
              and b.seq < j.seq limit 1000) f)) end
from $schema.job j where namespace = %(namespace)s and id = %(id)s

-- name: find_finished
-- One finished job.
select id::text, task, namespace, queue, state, kind, priority, attempt, deaths,
       date_part('epoch', created), date_part('epoch', not_before), date_part('epoch', expires),
       date_part('epoch', claimed), date_part('epoch', finished), worker, content_type, body,
       result_type, result, failure::text, reason, attempts::text, progress_done, progress_of,
       unique_key, traceparent, headers::text, null, null, null::bigint
from $schema.record where namespace = %(namespace)s and id = %(id)s

-- name: list_live
-- Live jobs that match, after a place, newest first, each with its place. No index
-- has their order, so all live jobs are looked at; only their places are sorted, not whole rows.
select id::text, task, namespace, queue, state, kind, priority, attempt, deaths,
       date_part('epoch', created), date_part('epoch', not_before), date_part('epoch', expires),
       date_part('epoch', claimed), null::float8, worker, content_type, body, null, null::bytea,
       null, coalesce(cancel_reason, ''), attempts::text, progress_done, progress_of, unique_key,
       traceparent, headers::text, gate, slots::text, null::bigint, seq
from $schema.job where ctid = any(array(
  select ctid from $schema.job
  where namespace = %(namespace)s and state in ($states)
    and (%(task)s::text is null or task = %(task)s)
    and (%(queue)s::text is null or queue = %(queue)s)
    and (%(worker)s::text is null or worker = %(worker)s)
    and (%(before)s::float8 is null or created < to_timestamp(%(before)s)
         or created > statement_timestamp())
    and (%(id_part)s::text is null or %(id_part)s in (left(id::text, length(%(id_part)s)),
                                                      right(id::text, length(%(id_part)s))))
    and created between to_timestamp(%(since)s::float8) and to_timestamp(%(until)s::float8)
    and seq < %(position)s
  order by seq desc limit %(limit)s
))
order by seq desc

-- name: list_finished
-- Finished jobs that match, between two places, last finished first, each with its place.
select id::text, task, namespace, queue, state, kind, priority, attempt, deaths,
       date_part('epoch', created), date_part('epoch', not_before), date_part('epoch', expires),
       date_part('epoch', claimed), date_part('epoch', finished), worker, content_type, body,
       result_type, result, failure::text, reason, attempts::text, progress_done, progress_of,
       unique_key, traceparent, headers::text, null, null, null::bigint,
       date_part('epoch', finished)
from $schema.record r
where namespace = %(namespace)s and state in ($states)
  and (%(task)s::text is null or task = %(task)s)
  and (%(queue)s::text is null or queue = %(queue)s)
  and (%(worker)s::text is null or worker = %(worker)s)
  and (%(before)s::float8 is null or created < to_timestamp(%(before)s)
       or created > statement_timestamp())
  and (%(id_part)s::text is null or %(id_part)s in (left(id::text, length(%(id_part)s)),
                                                    right(id::text, length(%(id_part)s))))
  and (finished, id) < (to_timestamp(%(position)s::float8), %(id)s::uuid)
  and (finished, id) >= (to_timestamp(%(first)s::float8), %(first_id)s::uuid)
order by r.finished desc, r.id desc limit %(limit)s

-- name: finished_edge
-- The last one of a portion of the finished jobs. No row if the portion has all that are left.
select date_part('epoch', finished), id::text from $schema.record r
where namespace = %(namespace)s and $indexed
  and (finished, id) < (to_timestamp(%(position)s::float8), %(id)s::uuid)
  and (finished, id) >= (to_timestamp(%(first)s::float8), %(first_id)s::uuid)
order by r.finished desc, r.id desc offset %(skipped)s limit 1

-- name: await_live
-- Marks a live job as awaited, so that its end is notified. No row if it is not live. Waits for a
-- transaction that settles it. The lock hides a queued job from fetches for a moment, so they are
-- woken up afterwards.
with touched as (
  update $schema.job set awaited = true where namespace = %(namespace)s and id = %(id)s
  returning queue, state
)
select case state
         when 'queued' then pg_notify('$channel', 'r:' || %(namespace)s || ':' || queue)
         when 'scheduled' then pg_notify('$channel', 's:' || %(namespace)s) end
from touched

-- name: is_live
-- One row if the job is live.
select 1 from $schema.job where namespace = %(namespace)s and id = %(id)s

-- name: progress
-- Stores progress under the current leases. An older lease changes nothing.
update $schema.job j set progress_done = n.done, progress_of = n.of
from unnest(%(id)s::uuid[], %(fence)s::bigint[], %(done)s::float8[], %(of)s::float8[])
  as n (id, fence, done, of)
where j.id = n.id and j.namespace = %(namespace)s and j.fence = n.fence and j.state = 'running'

-- name: replay
-- Queues finished jobs that did not succeed again, with their ids and histories, and with changes
-- if given. A job whose join is not complete is blocked.
with old as (
  delete from $schema.record r
  where namespace = %(namespace)s and id = any(%(id)s::uuid[])
    and (state <> 'succeeded' or %(is_success_included)s)
    and not exists (select 1 from $schema.job j
                    where j.id = r.id and j.namespace = %(namespace)s)
  returning *
),
back as (
  insert into $schema.job (id, namespace, queue, kind, task, type, state, priority, content_type,
                           body, created, attempt, max_deaths, traceparent, headers, fence,
                           attempts, steps, received, part)
  select id, namespace, coalesce(%(queue)s, queue), coalesce(%(kind)s, kind),
         coalesce(%(task)s, task), type,
         case when exists (select 1 from $schema.job_wait w
                           join $schema.job_join j on j.namespace = w.namespace and j.id = w.join_id
                           where w.job = old.id and w.namespace = old.namespace
                             and not j.done and (j.open > 0 or j.held is not null))
              then 'blocked' else 'queued' end, coalesce(%(priority)s, priority),
         coalesce(%(content_type)s, content_type), coalesce(%(body)s, body), created, 1,
         max_deaths, traceparent, headers, fence, attempts,
         exists (select 1 from $schema.step s
                 where s.job = old.id and s.namespace = %(namespace)s),
         queue like 'worker-%%' and attempts <> '[]' and reason not like 'inbox:%%',
         exists (select 1 from $schema.job_edge e where e.job = old.id and e.namespace = old.namespace)
  from old
  returning id, queue
),
forgotten as (
  delete from $schema.step s using back
  where s.job = back.id and s.namespace = %(namespace)s and %(from_scratch)s
),
told as (
  select count(pg_notify('$channel', 'r:' || %(namespace)s || ':' || queue)) as times
  from (select distinct queue from back) b
)
select id::text, (select times from told) from back

-- name: tasks
-- The tasks of these jobs, live or finished.
select id::text, task from $schema.job where namespace = %(namespace)s and id = any(%(id)s::uuid[])
union all
select id::text, task from $schema.record where namespace = %(namespace)s and id = any(%(id)s::uuid[])

-- name: remove
-- Deletes these finished jobs. Returns a row for each.
delete from $schema.record where namespace = %(namespace)s and id = any(%(id)s::uuid[])
returning 1

-- name: count_rows
-- How many rows of a table the namespace has.
select count(*) from $schema.$table where namespace = %(namespace)s

-- name: delete_rows
-- Deletes a batch of the rows of a table that the namespace has. Returns a row for each.
delete from $schema.$table
where namespace = %(namespace)s
  and ($key) in (select $key from $schema.$table where namespace = %(namespace)s limit %(limit)s)
returning 1

-- name: beyond
-- The newest finished job beyond a count. Buried jobs are not counted.
select finished::text, id::text from $schema.record r
where namespace = %(namespace)s and state <> 'buried'
order by r.finished desc, r.id desc offset %(keep)s limit 1

-- name: prune
-- Deletes finished jobs of an age, by the server's clock, and one record and all that are older.
-- Buried jobs stay, and those of groups that have joins. Materialized: otherwise the subquery might run once for each record, each time
-- with the whole limit.
with old as materialized (
  select id from $schema.record r
  where namespace = %(namespace)s and state <> 'buried'
    and not (headers ? 'graph' and exists (
      select 1 from $schema.job_join j
      where j.namespace = r.namespace and j.group_id = r.headers ->> 'graph'))
    and finished <= greatest($schema.moment(null, -%(age)s::float8), %(finished)s::timestamptz)
    and (finished <= $schema.moment(null, -%(age)s::float8)
         or (finished, id) <= (%(finished)s::timestamptz, %(id)s::uuid))
  order by finished, id limit %(limit)s for update skip locked
),
gone as (
  delete from $schema.record r using old where r.namespace = %(namespace)s and r.id = old.id
  returning 1
)
select count(*) from gone

-- name: prunable_groups
-- Roots of graphs of an age, by the server's clock, and those up to one record, of groups that have
-- joins, after one of them.
select r.id::text from $schema.record r
where r.namespace = %(namespace)s and r.task = 'umbel.graph' and r.state <> 'buried'
  and (r.finished, r.id) > (
    coalesce((select a.finished from $schema.record a
              where a.id = %(after)s and a.namespace = %(namespace)s), '-infinity'), %(after)s::uuid)
  and r.finished <= greatest($schema.moment(null, -%(age)s::float8), %(finished)s::timestamptz)
  and (r.finished <= $schema.moment(null, -%(age)s::float8)
       or (r.finished, r.id) <= (%(finished)s::timestamptz, %(id)s::uuid))
  and exists (select 1 from $schema.job_join j
              where j.namespace = r.namespace and j.group_id = r.id::text)
order by r.finished, r.id limit %(limit)s

-- name: prune_kept_until
-- Deletes finished jobs whose own time has come, by the server's clock, except those of groups that
-- have joins. Materialized for the same reason.
with old as materialized (
  select id from $schema.record r
  where namespace = %(namespace)s and keep_until <= statement_timestamp()
    and not (headers ? 'graph' and exists (
      select 1 from $schema.job_join j
      where j.namespace = r.namespace and j.group_id = r.headers ->> 'graph'))
  order by keep_until limit %(limit)s for update skip locked
),
gone as (
  delete from $schema.record r using old where r.namespace = %(namespace)s and r.id = old.id
  returning 1
)
select count(*) from gone

-- name: forget_gates
-- In a batch of gates by name, deletes those of tokens that no job holds and whose rate has no
-- effect any more: a new gate would let the same jobs pass. For credit see Pace. Skips gates that
-- another transaction has locked. Returns the last gate of the batch, the size of the batch, and
-- the number deleted.
with seen as materialized (
  select max(key) as last, count(*) as many
  from (select key from $schema.gate
        where namespace = %(namespace)s and key > %(after)s order by key limit %(portion)s) g
),
spent as materialized (
  select g.key from seen, $schema.gate g
  where g.namespace = %(namespace)s and g.key > %(after)s and g.key <= seen.last and g.held = 0
    and position('#' in g.key) > 0
    and (select max(pace) from unnest(g.paces) pace)
        <= date_part('epoch', statement_timestamp()) - %(credit)s * coalesce(
          (select max((rate ->> 1)::float8)
           from $schema.rule r, jsonb_array_elements(r.declared -> 'rates') rate
           where r.namespace = %(namespace)s and r.name = split_part(g.key, '#', 1)), %(longest)s)
  for update of g skip locked
),
gone as (
  delete from $schema.gate g using spent
  where g.namespace = %(namespace)s and g.key = spent.key returning 1
)
select last, many, (select count(*) from gone) from seen

-- name: register
-- Adds an incarnation. Repeating it changes nothing. Returns its index, or the worker that has the
-- requested one.
select at_index, taken
from $schema.register_worker(%(namespace)s, %(incarnation)s, %(name)s, %(entry)s::jsonb, %(idx)s)

-- name: heartbeat
-- Records a heartbeat of a registered worker.
update $schema.worker
set beat = beat + 1, beaten = statement_timestamp(), running = %(running)s, epoch = %(epoch)s,
    stopping = %(stopping)s
where incarnation = %(incarnation)s
returning beat

-- name: workers
-- All registered workers.
select entry::text, beat, now - date_part('epoch', started), now - date_part('epoch', beaten),
       running, epoch, stopping
from $schema.worker, date_part('epoch', statement_timestamp()) as now
where namespace = %(namespace)s order by name, started

-- name: remove_worker
-- Removes a worker that has had no heartbeat since the given one.
delete from $schema.worker where incarnation = %(incarnation)s and beat = %(beat)s returning 1

-- name: unregister
-- Removes an incarnation and keeps its index for the duration of its lease.
with gone as (
  delete from $schema.worker where incarnation = %(incarnation)s returning namespace, idx, entry
)
update $schema.worker_index s
set kept = statement_timestamp() + make_interval(secs => (gone.entry ->> 'lease')::float8)
from gone where s.namespace = gone.namespace and s.idx = gone.idx

-- name: record_receipts
-- Records that messages to one worker were received, and returns for each whether it was received
-- before. Calls with the same job wait for each other; the order of ids prevents deadlocks.
-- Receipts so old that their messages are refused by age are deleted.
with past as (
  delete from $schema.inbox_receipt where until < statement_timestamp() - make_interval(secs => %(past)s)
),
message as (
  select * from unnest(%(jobs)s::uuid[], %(untils)s::float8[]) m (id, until)
),
job as materialized (
  select j.id, j.received from $schema.job j join message m on m.id = j.id
  where j.namespace = %(namespace)s
  order by j.id for update of j
),
noted as (
  insert into $schema.inbox_receipt (namespace, job, until)
  select %(namespace)s, m.id, to_timestamp(m.until) from message m left join job on job.id = m.id
  where m.until >= date_part('epoch', statement_timestamp()) and job.received is not true
  order by m.id
  on conflict (namespace, job) do nothing
  returning job
),
marked as (
  update $schema.job j set received = true
  from noted where j.id = noted.job and j.namespace = %(namespace)s
)
select m.id::text,
  case when job.received then 'again' when noted.job is not null then 'first'
       when m.until < date_part('epoch', statement_timestamp()) then 'late' else 'copy' end
from message m left join job on job.id = m.id left join noted on noted.job = m.id

-- name: ask_to_stop
-- Asks the workers of running jobs to stop them. The first reason stays. Returns their ids.
update $schema.job set cancel_reason = coalesce(cancel_reason, %(reason)s)
where namespace = %(namespace)s and id = any(%(id)s::uuid[]) and state = 'running'
returning id::text

-- name: final_states
-- The states of finished jobs.
select id::text, state from $schema.record
where namespace = %(namespace)s and id = any(%(id)s::uuid[])

-- name: cancellations
-- The running jobs among these that are to be stopped, with the reason.
select id::text, cancel_reason from $schema.job
where id = any(%(id)s::uuid[]) and namespace = %(namespace)s and cancel_reason is not null

-- name: runs
-- The running jobs of these incarnations, oldest first.
select id::text, task, queue, owner,
       date_part('epoch', statement_timestamp()) - date_part('epoch', claimed)
from $schema.job
where state = 'running' and owner = any(%(owners)s::text[]) and namespace = %(namespace)s
order by claimed, seq

-- name: count_waiting
-- The number of live jobs of each queue and task that do not run.
select queue, task, count(*) from $schema.job
where namespace = %(namespace)s and state <> 'running'
group by queue, task

-- name: run_times
-- Run times of tasks that ran too long. All runs are counted and sorted here, so few rows are
-- returned.
with run as materialized (
  select r.task, r.id, (a.value ->> 'finished')::float8 - (a.value ->> 'started')::float8 as took
  from $schema.record r, jsonb_array_elements(
    case when jsonb_typeof(r.attempts) = 'array' then r.attempts else '[]' end) a
  where r.namespace = %(namespace)s
    and r.finished >= statement_timestamp() - make_interval(secs => %(since)s)
    and r.task <> all (%(but)s::text[])
    and jsonb_typeof(a.value -> 'finished') = 'number' and jsonb_typeof(a.value -> 'started') = 'number'
    and a.value ->> 'ended' <> 'lost'
)
select task, count(*), count(*) filter (where took > %(longer)s),
       percentile_disc(0.5) within group (order by took),
       percentile_disc(0.95) within group (order by took), max(took),
       to_json((array_agg(json_build_array(took, id) order by took desc, id desc)
                filter (where took > %(longer)s))[1:%(worst)s])::text
from run group by task having max(took) > %(longer)s order by max(took) desc, task
