-- name: find_live
-- One live job, and how many jobs wait before it in its lane at a gate, counted up to a thousand.
select id, task, namespace, queue, state, kind, priority, attempt, deaths, created, not_before,
       expires, claimed, null, worker, content_type, body, null, null, null,
       coalesce(cancel_reason, ''), attempts, progress_done, progress_of, unique_key, traceparent,
       headers, gate, slots, case when state = 'waiting' then min(1000,
         (select count(*) from (
            select 1 from job b
            where b.namespace = job.namespace and b.gate = job.gate and b.queue = job.queue
              and b.kind = job.kind and b.state = 'waiting' and b.priority > job.priority limit 1000)) +
         (select count(*) from (
            select 1 from job b
            where b.namespace = job.namespace and b.gate = job.gate and b.queue = job.queue
              and b.kind = job.kind and b.state = 'waiting' and b.priority = job.priority
              and b.seq < job.seq limit 1000))) end
from job where namespace = :namespace and id = :id

-- name: find_finished
-- One finished job.
select id, task, namespace, queue, state, kind, priority, attempt, deaths, created, not_before,
       expires, claimed, finished, worker, content_type, body, result_type, result, failure,
       reason, attempts, progress_done, progress_of, unique_key, traceparent, headers, null,
       null, null
from record where namespace = :namespace and id = :id

-- name: list_live
-- Live jobs that match, after a place, newest first, each with its place.
select id, task, namespace, queue, state, kind, priority, attempt, deaths, created, not_before,
       expires, claimed, null, worker, content_type, body, null, null, null,
       coalesce(cancel_reason, ''), attempts, progress_done, progress_of, unique_key, traceparent,
       headers, gate, slots, null, seq
from job
where namespace = :namespace and state in ($states)
  and (:task is null or task = :task)
  and (:queue is null or queue = :queue)
  and (:worker is null or worker = :worker)
  and (:before is null or created < :before or created > :now)
  and (:id_part is null or :id_part in (substr(lower(id), 1, length(:id_part)),
                                        substr(lower(id), -length(:id_part))))
  and created between :since and :until and seq < :position
order by seq desc limit :limit

-- name: list_finished
-- Finished jobs that match, between two places, last finished first, each with its place.
select id, task, namespace, queue, state, kind, priority, attempt, deaths, created, not_before,
       expires, claimed, finished, worker, content_type, body, result_type, result, failure,
       reason, attempts, progress_done, progress_of, unique_key, traceparent, headers, null,
       null, null, finished
from record
where namespace = :namespace and state in ($states)
  and (:task is null or task = :task)
  and (:queue is null or queue = :queue)
  and (:worker is null or worker = :worker)
  and (:before is null or created < :before or created > :now)
  and (:id_part is null or :id_part in (substr(lower(id), 1, length(:id_part)),
                                        substr(lower(id), -length(:id_part))))
  and (finished, id) < (:position, :id) and (finished, id) >= (:first, :first_id)
order by finished desc, id desc limit :limit

-- name: finished_edge
-- The last one of a portion of the finished jobs. No row if the portion has all that are left.
select finished, id from record
where namespace = :namespace and $indexed
  and (finished, id) < (:position, :id) and (finished, id) >= (:first, :first_id)
order by finished desc, id desc limit 1 offset :skipped

-- name: is_finished
-- Whether a job is finished (1) or live (0). No row for an unknown job.
select 1 from record where namespace = :namespace and id = :id
union all select 0 from job where namespace = :namespace and id = :id

-- name: progress
-- Stores progress under the current lease. An older lease changes nothing.
update job set progress_done = :done, progress_of = :of
where id = :id and namespace = :namespace and fence = :fence and state = 'running'

-- name: replay
-- Queues a finished job that did not succeed again, with its id and history, and with changes if
-- given. A job whose join is not complete is blocked.
insert into job (id, namespace, queue, kind, task, type, state, priority, content_type, body, created,
                 expires, attempt, max_deaths, traceparent, headers, fence, attempts, steps, received)
select id, namespace, coalesce(:queue, queue), coalesce(:kind, kind), coalesce(:task, task), type,
       iif(exists (select 1 from job_wait w
                   join job_join j on j.namespace = w.namespace and j.id = w.join_id
                   where w.job = record.id and w.namespace = record.namespace
                     and not j.done and (j.open > 0 or j.held is not null)), 'blocked', 'queued'),
       coalesce(:priority, priority), coalesce(:content_type, content_type),
       coalesce(:body, body), created, null, 1, max_deaths, traceparent, headers, fence, attempts,
       exists (select 1 from step where job = record.id and namespace = record.namespace),
       queue like 'worker-%' and attempts <> '[]' and reason not like 'inbox:%'
from record
where namespace = :namespace and id = :id and (state <> 'succeeded' or :is_success_included)

-- name: forget_steps
-- Deletes the steps of a job, so that all of them run again.
delete from step where job = :id and namespace = :namespace

-- name: remove_replayed
-- Deletes the record of a job that is queued again.
delete from record where namespace = :namespace and id = :id

-- name: tasks
-- The tasks of these jobs, live or finished.
select id, task from job where namespace = :namespace and id in (select value from json_each(:id))
union all
select id, task from record
where namespace = :namespace and id in (select value from json_each(:id))

-- name: remove
-- Deletes these finished jobs. Returns a row for each.
delete from record where namespace = :namespace and id in (select value from json_each(:id))
returning 1

-- name: count_rows
-- How many rows of a table the namespace has.
select count(*) from $table where namespace = :namespace

-- name: delete_rows
-- Deletes a batch of the rows of a table that the namespace has. Returns a row for each.
delete from $table
where namespace = :namespace
  and ($key) in (select $key from $table where namespace = :namespace limit :limit)
returning 1

-- name: beyond
-- The newest finished job beyond a count. Buried jobs are not counted.
select finished, state, rowid from record
where namespace = :namespace and state <> 'buried'
order by finished desc, state desc, rowid desc limit 1 offset :keep

-- name: prune
-- Deletes finished jobs up to a time, and one record and all that are older. Buried jobs stay, and
-- those of groups that have joins.
delete from record where rowid in (
  select rowid from record
  where namespace = :namespace and finished <= max(:before, :finished) and state <> 'buried'
    and not exists (select 1 from job_join j
                    where j.namespace = record.namespace
                      and j.group_id = json_extract(record.headers, '$.graph'))
    and (finished <= :before or (finished, state, rowid) <= (:finished, :state, :row))
  order by finished, state, rowid limit :limit)

-- name: prunable_groups
-- Roots of graphs up to a time, and those up to one record, of groups that have joins, after one of them.
select id from record
where namespace = :namespace and task = 'umbel.graph' and state <> 'buried'
  and (finished, id) > (coalesce((select a.finished from record a
                                  where a.id = :after and a.namespace = :namespace), -9e999), :after)
  and finished <= max(:before, :finished)
  and (finished <= :before or (finished, state, rowid) <= (:finished, :state, :row))
  and exists (select 1 from job_join j where j.namespace = record.namespace and j.group_id = record.id)
order by finished, id limit :limit

-- name: prune_kept_until
-- Deletes finished jobs whose own time has come, except those of groups that have joins.
delete from record where rowid in (
  select rowid from record
  where namespace = :namespace and keep_until <= :now
    and not exists (select 1 from job_join j
                    where j.namespace = record.namespace
                      and j.group_id = json_extract(record.headers, '$.graph'))
  order by keep_until limit :limit)

-- name: file_time
-- The file's time: the time by which it was last pruned, otherwise when its first job finished.
select coalesce((select until from pruned where namespace = :namespace),
                (select min(finished) from record where namespace = :namespace))

-- name: save_time
-- Stores the file's time. It never goes back.
insert into pruned (namespace, until) values (:namespace, :until)
on conflict (namespace) do update set until = max(until, excluded.until)

-- name: gate_batch
-- The last gate of a batch, by name, and the size of the batch.
select max(key), count(*)
from (select key from gate where namespace = :namespace and key > :after order by key limit :portion)

-- name: forget_gates
-- Deletes gates of tokens in this batch that no job holds and whose rate has no effect any more: a
-- new gate would let the same jobs pass. For credit see Pace.
delete from gate
where namespace = :namespace and key > :after and key <= :last and held = 0 and instr(key, '#')
  and (select max(value) from json_each(iif(json_valid(paces), paces, '[]'))) <= :now - :credit * coalesce(
    (select max(json_extract(rate.value, '$[1]')) from rule, json_each(declared, '$.rates') rate
     where rule.namespace = gate.namespace
       and name = substr(gate.key, 1, instr(gate.key, '#') - 1)), :longest)

-- name: register
-- Adds an incarnation. Repeating it changes nothing.
insert into worker (incarnation, namespace, entry, name, started, beaten, idx)
values (:incarnation, :namespace, :entry, :name, :now, :now, :idx) on conflict do nothing

-- name: index_of
-- The index of an incarnation.
select idx from worker where incarnation = :incarnation

-- name: holder
-- A registered worker of another name at an index.
select name from worker where namespace = :namespace and idx = :idx and name <> :name

-- name: kept_index
-- The index that a worker of this name had, if no worker has it now.
select idx from worker_index s
where namespace = :namespace and name = :name
  and not exists (select 1 from worker w where w.namespace = s.namespace and w.idx = s.idx)
order by kept > :now desc, idx limit 1

-- name: free_index
-- The lowest index that no worker has and that is kept for none.
select min(idx) from (
  select 0 as idx union all select idx + 1 from worker_index where namespace = :namespace
) s where not exists (select 1 from worker w where w.namespace = :namespace and w.idx = s.idx)
  and not exists (select 1 from worker_index k where k.namespace = :namespace and k.idx = s.idx and k.kept > :now)

-- name: has_other_name
-- Whether a worker of another name had an index before.
select 1 from worker_index where namespace = :namespace and idx = :idx and name <> :name

-- name: clear_index
-- Stops keeping an index.
update worker_index set kept = null where namespace = :namespace and idx = :idx

-- name: take_index
-- Assigns an index to a worker.
insert into worker_index (namespace, idx, name) values (:namespace, :idx, :name)
on conflict do update set name = excluded.name, kept = null, retiring = 0

-- name: keep_index
-- Keeps the index of a worker that unregisters, for the duration of its lease.
update worker_index set kept = :now + (select json_extract(entry, '$.lease') from worker
                               where incarnation = :incarnation)
where namespace = :namespace
  and idx = (select idx from worker where incarnation = :incarnation)

-- name: heartbeat
-- Records a heartbeat of a registered worker.
update worker
set beat = beat + 1, beaten = :now, running = :running, epoch = :epoch, stopping = :stopping
where incarnation = :incarnation
returning 1

-- name: workers
-- All registered workers.
select entry, beat, :now - started, :now - beaten, running, epoch, stopping from worker
where namespace = :namespace order by name, started

-- name: remove_worker
-- Removes a worker that has had no heartbeat since the given one.
delete from worker where incarnation = :incarnation and beat = :beat returning 1

-- name: unregister
-- Removes an incarnation.
delete from worker where incarnation = :incarnation

-- name: was_received
-- Whether a job was received before.
select 1 from job where namespace = :namespace and id = :job and received

-- name: add_receipt
-- Records that a message to one worker was received.
insert into inbox_receipt (namespace, job, until) values (:namespace, :job, :until)
on conflict (namespace, job) do nothing

-- name: mark_received
-- Marks the job as received.
update job set received = 1 where namespace = :namespace and id = :job

-- name: delete_old_receipts
-- Deletes receipts so old that their messages are refused by age.
delete from inbox_receipt where until < :past

-- name: cancel_idle
-- Adds a cancelled or buried record for those of these jobs that do not run. Returns their ids.
insert into record (id, namespace, queue, kind, task, type, state, priority, content_type, body,
                    created, not_before, expires, attempt, deaths, max_deaths, unique_key,
                    traceparent, headers, worker, fence, claimed, attempts, finished, reason)
select id, namespace, coalesce(json_extract(slots, '$[#-1].home'), queue), kind, task, type,
       :final, priority, content_type, body, created,
       not_before, expires, attempt, deaths, max_deaths, unique_key, traceparent, headers, null,
       fence, claimed, attempts, :now, :reason
from job
where namespace = :namespace and id in (select value from json_each(:id)) and state <> 'running'
returning id

-- name: free_ended
-- Frees the slots of those jobs.
update job set slots = null
where namespace = :namespace and id in (select value from json_each(:id)) and state <> 'running'
  and slots is not null

-- name: delete_ended
-- Deletes those jobs from the table of live jobs.
delete from job
where namespace = :namespace and id in (select value from json_each(:id)) and state <> 'running'

-- name: ask_to_stop
-- Asks the workers of running jobs to stop them. The first reason stays. Returns their ids.
update job set cancel_reason = coalesce(cancel_reason, :reason)
where namespace = :namespace and id in (select value from json_each(:id)) and state = 'running'
returning id

-- name: final_states
-- The states of finished jobs.
select id, state from record
where namespace = :namespace and id in (select value from json_each(:id))

-- name: cancellations
-- The running jobs among these that are to be stopped, with the reason.
select id, cancel_reason from job
where id in (select value from json_each(:id)) and namespace = :namespace
  and cancel_reason is not null

-- name: runs
-- The running jobs of these incarnations, oldest first.
select id, task, queue, owner, :now - claimed from job
where state = 'running' and owner in (select value from json_each(:owners))
  and namespace = :namespace
order by claimed, seq

-- name: count_waiting
-- The number of live jobs of each queue and task that do not run.
select queue, task, count(*) from job
where namespace = :namespace and state <> 'running'
group by queue, task

-- name: run_times
-- Run times of tasks that ran too long. All runs are counted and sorted here, so few rows are
-- returned.
with run as materialized (
  select r.task, r.id, json_extract(a.value, '$.finished') - json_extract(a.value, '$.started') as took
  from record r,
       json_each(iif(json_valid(r.attempts) and json_type(r.attempts) = 'array', r.attempts, '[]')) a
  where r.namespace = :namespace and r.finished >= :now - :since
    and r.task not in (select value from json_each(:but))
    and a.type = 'object' and json_extract(a.value, '$.ended') <> 'lost'
),
placed as (
  select task, id, took, count(*) over (partition by task) as runs,
         row_number() over (partition by task order by took, id) as place
  from run
  where task in (select task from run where took > :longer)
)
select task, runs, sum(took > :longer), max(iif(place = (runs * 50 + 99) / 100, took, null)),
       max(iif(place = (runs * 95 + 99) / 100, took, null)), max(took),
       json_group_array(json_array(took, id)) filter (where place > runs - :worst and took > :longer)
from placed group by task order by max(took) desc, task
