-- name: find_live
-- One live job, and how many jobs wait before it in its lane at a gate, counted up to a thousand.
select id::text, task, namespace, queue, state, kind, priority, attempt, deaths,
       date_part('epoch', created), date_part('epoch', not_before), date_part('epoch', expires),
       date_part('epoch', claimed), null::float8, worker, content_type, body, null, null::bytea,
       null, coalesce(cancel_reason, ''), attempts::text, progress_done, progress_of, unique_key,
       traceparent, headers::text, line, slots::text, case when state = 'waiting' then least(1000,
         (select count(*) from (
            select 1 from $schema.job b
            where b.namespace = j.namespace and b.line = j.line and b.queue = j.queue
              and b.kind = j.kind and b.state = 'waiting' and b.priority > j.priority limit 1000) f) +
         (select count(*) from (
            select 1 from $schema.job b
            where b.namespace = j.namespace and b.line = j.line and b.queue = j.queue
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
-- Live jobs that match, newest first.
select id::text, task, namespace, queue, state, kind, priority, attempt, deaths,
       date_part('epoch', created), date_part('epoch', not_before), date_part('epoch', expires),
       date_part('epoch', claimed), null::float8, worker, content_type, body, null, null::bytea,
       null, coalesce(cancel_reason, ''), attempts::text, progress_done, progress_of, unique_key,
       traceparent, headers::text, line, slots::text, null::bigint
from $schema.job
where namespace = %(namespace)s and state in ($states)
  and (%(task)s::text is null or task = %(task)s)
  and (%(queue)s::text is null or queue = %(queue)s)
  and (%(worker)s::text is null or worker = %(worker)s)
  and (%(before)s::float8 is null or created < to_timestamp(%(before)s)
       or created > statement_timestamp())
order by seq desc limit %(limit)s

-- name: list_finished
-- Finished jobs that match, last finished first.
select id::text, task, namespace, queue, state, kind, priority, attempt, deaths,
       date_part('epoch', created), date_part('epoch', not_before), date_part('epoch', expires),
       date_part('epoch', claimed), date_part('epoch', finished), worker, content_type, body,
       result_type, result, failure::text, reason, attempts::text, progress_done, progress_of,
       unique_key, traceparent, headers::text, null, null, null::bigint
from $schema.record
where namespace = %(namespace)s and state in ($states)
  and (%(task)s::text is null or task = %(task)s)
  and (%(queue)s::text is null or queue = %(queue)s)
  and (%(worker)s::text is null or worker = %(worker)s)
  and (%(before)s::float8 is null or created < to_timestamp(%(before)s)
       or created > statement_timestamp())
order by finished desc limit %(limit)s

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
-- if given.
with old as (
  delete from $schema.record r
  where namespace = %(namespace)s and id = any(%(id)s::uuid[]) and state <> 'succeeded'
    and not exists (select 1 from $schema.job j
                    where j.id = r.id and j.namespace = %(namespace)s)
  returning *
),
back as (
  insert into $schema.job (id, namespace, queue, kind, task, type, state, priority, content_type,
                           body, created, attempt, max_deaths, traceparent, headers, fence,
                           attempts, steps, heard)
  select id, namespace, coalesce(%(queue)s, queue), coalesce(%(kind)s, kind),
         coalesce(%(task)s, task), type, 'queued', coalesce(%(priority)s, priority),
         coalesce(%(content_type)s, content_type), coalesce(%(body)s, body), created, 1,
         max_deaths, traceparent, headers, fence, attempts,
         exists (select 1 from $schema.step s
                 where s.job = old.id and s.namespace = %(namespace)s),
         queue like 'worker-%%' and attempts <> '[]' and reason not like 'inbox:%%'
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

-- name: remove
-- Deletes these finished jobs. Returns a row for each.
delete from $schema.record where namespace = %(namespace)s and id = any(%(id)s::uuid[])
returning 1

-- name: beyond
-- The newest finished job beyond a count. Buried jobs are not counted.
select finished::text, id::text from $schema.record r
where namespace = %(namespace)s and state <> 'buried'
order by r.finished desc, r.id desc offset %(keep)s limit 1

-- name: prune
-- Deletes finished jobs of an age, by the server's clock, and one record and all that are older.
-- Buried jobs stay. Materialized: otherwise the subquery might run once for each record, each time
-- with the whole limit.
with old as materialized (
  select id from $schema.record
  where namespace = %(namespace)s and state <> 'buried'
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
select seat, taken
from $schema.enlist(%(namespace)s, %(incarnation)s, %(name)s, %(entry)s::jsonb, %(idx)s)

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
update $schema.seat s
set kept = statement_timestamp() + make_interval(secs => (gone.entry ->> 'lease')::float8)
from gone where s.namespace = gone.namespace and s.idx = gone.idx

-- name: record_receipts
-- Records that messages to one worker were received, and returns for each whether it was received
-- before. Calls with the same job wait for each other; the order of ids prevents deadlocks.
-- Receipts so old that their messages are refused by age are deleted.
with past as (
  delete from $schema.heard where until < statement_timestamp() - make_interval(secs => %(past)s)
),
message as (
  select * from unnest(%(jobs)s::uuid[], %(untils)s::float8[]) m (id, until)
),
job as materialized (
  select j.id, j.heard from $schema.job j join message m on m.id = j.id
  where j.namespace = %(namespace)s
  order by j.id for update of j
),
noted as (
  insert into $schema.heard (namespace, job, until)
  select %(namespace)s, m.id, to_timestamp(m.until) from message m left join job on job.id = m.id
  where m.until >= date_part('epoch', statement_timestamp()) and job.heard is not true
  order by m.id
  on conflict (namespace, job) do nothing
  returning job
),
marked as (
  update $schema.job j set heard = true
  from noted where j.id = noted.job and j.namespace = %(namespace)s
)
select m.id::text,
  case when job.heard then 'again' when noted.job is not null then 'first'
       when m.until < date_part('epoch', statement_timestamp()) then 'late' else 'copy' end
from message m left join job on job.id = m.id left join noted on noted.job = m.id

-- name: epoch
-- The number of the last change of the control state.
select epoch from $schema.control where namespace = %(namespace)s

-- name: next_epoch
-- Counts a change of the control state, notifies all workers and returns the new epoch.
insert into $schema.control as c (namespace, epoch) values (%(namespace)s, 1)
on conflict (namespace) do update set epoch = c.epoch + 1
returning epoch, pg_notify('$channel', 'c:' || %(namespace)s)

-- name: state
-- All pauses, and the epoch for which they hold.
select coalesce((select epoch from $schema.control where namespace = %(namespace)s), 0),
       scope, name, date_part('epoch', since), reason, holder,
       date_part('epoch', statement_timestamp() - since)
from (select) one left join $schema.pause on namespace = %(namespace)s
order by scope, name, holder

-- name: pause
-- Adds a pause. The first reason stays.
insert into $schema.pause (namespace, scope, name, reason)
values (%(namespace)s, %(scope)s, %(name)s, %(reason)s) on conflict do nothing

-- name: resume
-- Removes a pause of the operators.
delete from $schema.pause
where namespace = %(namespace)s and scope = %(scope)s and name = %(name)s and holder = ''

-- name: end_missing
-- Removes the pauses of tasks that a running worker has.
delete from $schema.pause
where namespace = %(namespace)s and scope = 'task' and name = any(%(found)s::text[])
  and holder = 'missing'

-- name: begin_missing
-- Adds pauses for tasks that no running worker has.
insert into $schema.pause (namespace, scope, name, reason, holder)
select %(namespace)s, 'task', name, %(reason)s, 'missing' from unnest(%(missing)s::text[]) as n (name)
on conflict do nothing

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
