-- name: find_live
-- One live job, and how many stand before it in its lane of the line, counted to a thousand.
select id, task, namespace, queue, state, kind, priority, attempt, deaths, created, not_before,
       expires, claimed, null, worker, content_type, body, null, null, null,
       coalesce(cancel_reason, ''), attempts, progress_done, progress_of, unique_key, traceparent,
       headers, line, slots, case when state = 'waiting' then min(1000,
         (select count(*) from (
            select 1 from job b
            where b.namespace = job.namespace and b.line = job.line and b.queue = job.queue
              and b.kind = job.kind and b.state = 'waiting' and b.priority > job.priority limit 1000)) +
         (select count(*) from (
            select 1 from job b
            where b.namespace = job.namespace and b.line = job.line and b.queue = job.queue
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
-- Live jobs that match, newest first.
select id, task, namespace, queue, state, kind, priority, attempt, deaths, created, not_before,
       expires, claimed, null, worker, content_type, body, null, null, null,
       coalesce(cancel_reason, ''), attempts, progress_done, progress_of, unique_key, traceparent,
       headers, line, slots, null
from job
where namespace = :namespace
  and (:states is null or state in (select value from json_each(:states)))
  and (:task is null or task = :task)
  and (:queue is null or queue = :queue)
  and (:worker is null or worker = :worker)
  and (:before is null or created < :before or created > :now)
order by seq desc limit :limit

-- name: list_finished
-- Finished jobs that match, last finished first.
select id, task, namespace, queue, state, kind, priority, attempt, deaths, created, not_before,
       expires, claimed, finished, worker, content_type, body, result_type, result, failure,
       reason, attempts, progress_done, progress_of, unique_key, traceparent, headers, null,
       null, null
from record
where namespace = :namespace
  and (:states is null or state in (select value from json_each(:states)))
  and (:task is null or task = :task)
  and (:queue is null or queue = :queue)
  and (:worker is null or worker = :worker)
  and (:before is null or created < :before or created > :now)
order by finished desc limit :limit

-- name: is_finished
-- Whether a job is final (1), lives (0), or is unknown (no row).
select 1 from record where namespace = :namespace and id = :id
union all select 0 from job where namespace = :namespace and id = :id

-- name: progress
-- Notes progress under the lease that is held now; an older one changes nothing.
update job set progress_done = :done, progress_of = :of
where id = :id and namespace = :namespace and fence = :fence and state = 'running'

-- name: replay
-- A finished job that gave no result is queued anew with its id and story, changed where asked.
insert into job (id, namespace, queue, kind, task, type, state, priority, content_type, body, created,
                 expires, attempt, max_deaths, traceparent, headers, fence, attempts, steps, heard)
select id, namespace, coalesce(:queue, queue), coalesce(:kind, kind), coalesce(:task, task), type,
       'queued', coalesce(:priority, priority), coalesce(:content_type, content_type),
       coalesce(:body, body), created, null, 1, max_deaths, traceparent, headers, fence, attempts,
       exists (select 1 from step where job = record.id and namespace = record.namespace),
       queue like 'worker-%' and attempts <> '[]' and reason not like 'inbox:%'
from record where namespace = :namespace and id = :id and state <> 'succeeded'

-- name: forget_steps
-- All that a job has done is to be done again.
delete from step where job = :id and namespace = :namespace

-- name: remove
-- Forgets one finished job.
delete from record where namespace = :namespace and id = :id

-- name: beyond
-- The newest of the finished jobs beyond a count, which buried ones do not belong to.
select finished, state, rowid from record
where namespace = :namespace and state <> 'buried'
order by finished desc, state desc, rowid desc limit 1 offset :keep

-- name: prune
-- Forgets finished jobs up to a moment, and one of them and whatever is older; buried ones stay.
delete from record where rowid in (
  select rowid from record
  where namespace = :namespace and finished <= max(:before, :finished) and state <> 'buried'
    and (finished <= :before or (finished, state, rowid) <= (:finished, :state, :row))
  order by finished, state, rowid limit :limit)

-- name: last_time
-- The time that the file knows: the one by which it was last pruned, else when its first job finished.
select coalesce((select until from pruned where namespace = :namespace),
                (select min(finished) from record where namespace = :namespace))

-- name: keep_time
-- The file knows this time. It never goes back.
insert into pruned (namespace, until) values (:namespace, :until)
on conflict (namespace) do update set until = max(until, excluded.until)

-- name: some_gates
-- The last of a portion of the gates, by name, and how many they are.
select max(key), count(*)
from (select key from gate where namespace = :namespace and key > :after order by key limit :portion)

-- name: forget_gates
-- Of these gates, those of tokens go that nobody holds and whose paces are past: a new one would let
-- the same jobs pass. Credit: see Pace.
delete from gate
where namespace = :namespace and key > :after and key <= :last and held = 0 and instr(key, '#')
  and (select max(value) from json_each(iif(json_valid(paces), paces, '[]'))) <= :now - :credit * coalesce(
    (select max(json_extract(rate.value, '$[1]')) from rule, json_each(declared, '$.rates') rate
     where rule.namespace = gate.namespace
       and name = substr(gate.key, 1, instr(gate.key, '#') - 1)), :longest)

-- name: enlist
-- A life begins; repeating it changes nothing.
insert into worker (incarnation, namespace, entry, name, started, beaten, idx)
values (:incarnation, :namespace, :entry, :name, :now, :now, :idx) on conflict do nothing

-- name: seat_of
-- Where an incarnation sits.
select idx from worker where incarnation = :incarnation

-- name: holder
-- A living worker of another name at an index.
select name from worker where namespace = :namespace and idx = :idx and name <> :name

-- name: kept_seat
-- The seat that a worker of this name had, and nobody has now.
select idx from seat s
where namespace = :namespace and name = :name
  and not exists (select 1 from worker w where w.namespace = s.namespace and w.idx = s.idx)
order by kept > :now desc, idx limit 1

-- name: free_seat
-- The lowest index that nobody has, and that is kept for nobody.
select min(idx) from (
  select 0 as idx union all select idx + 1 from seat where namespace = :namespace
) s where not exists (select 1 from worker w where w.namespace = :namespace and w.idx = s.idx)
  and not exists (select 1 from seat k where k.namespace = :namespace and k.idx = s.idx and k.kept > :now)

-- name: inherits
-- Whether a worker of another name had a seat before.
select 1 from seat where namespace = :namespace and idx = :idx and name <> :name

-- name: clear_seat
-- A seat is kept for nobody.
update seat set kept = null where namespace = :namespace and idx = :idx

-- name: sit_down
-- A seat is this worker's.
insert into seat (namespace, idx, name) values (:namespace, :idx, :name)
on conflict do update set name = excluded.name, kept = null, retiring = 0

-- name: keep_seat
-- A seat is kept for a worker that leaves, for as long as it might have been silent.
update seat set kept = :now + (select json_extract(entry, '$.lease') from worker
                               where incarnation = :incarnation)
where namespace = :namespace
  and idx = (select idx from worker where incarnation = :incarnation)

-- name: beat
-- One heartbeat of a worker that is still enlisted.
update worker
set beat = beat + 1, beaten = :now, running = :running, epoch = :epoch, stopping = :stopping
where incarnation = :incarnation

-- name: members
-- All living workers.
select entry, beat, :now - started, :now - beaten, running, epoch, stopping from worker
where namespace = :namespace order by name, started

-- name: remove_member
-- Ends a life that stood still.
delete from worker where incarnation = :incarnation and beat = :beat

-- name: leave
-- Ends one's own life.
delete from worker where incarnation = :incarnation

-- name: was_heard
-- Whether this very job was heard.
select 1 from job where namespace = :namespace and id = :job and heard

-- name: hear
-- A message to one worker is heard.
insert into heard (namespace, job, until) values (:namespace, :job, :until)
on conflict (namespace, job) do nothing

-- name: mark_heard
-- It was this job.
update job set heard = 1 where namespace = :namespace and id = :job

-- name: forget_heard
-- What would be refused by its age.
delete from heard where until < :past

-- name: epoch
-- The number of the last change of control state.
select epoch from control where namespace = :namespace

-- name: next_epoch
-- One more change of control state.
insert into control (namespace, epoch) values (:namespace, 1)
on conflict (namespace) do update set epoch = epoch + 1 returning epoch

-- name: pauses
-- What is paused.
select scope, name, since, reason, holder from pause
where namespace = :namespace order by scope, name, holder

-- name: pause
-- Pauses; the first reason stays.
insert into pause (namespace, scope, name, since, reason)
values (:namespace, :scope, :name, :now, :reason) on conflict do nothing

-- name: resume
-- Resumes what operators paused.
delete from pause
where namespace = :namespace and scope = :scope and name = :name and holder = ''

-- name: end_missing
-- Lifts the pauses of tasks that a running worker has.
delete from pause
where namespace = :namespace and scope = 'task' and holder = 'missing'
  and name in (select value from json_each(:found))

-- name: begin_missing
-- Pauses tasks that no running worker has.
insert into pause (namespace, scope, name, since, reason, holder)
select :namespace, 'task', value, :now, :reason, 'missing' from json_each(:missing)
where true on conflict do nothing

-- name: ask_to_stop
-- Asks the worker of a running job to stop it; the first reason stays.
update job set cancel_reason = coalesce(cancel_reason, :reason)
where namespace = :namespace and id = :id and state = 'running'

-- name: final_state
-- The state a finished job has.
select state from record where namespace = :namespace and id = :id

-- name: cancellations
-- Which of these running jobs somebody wants stopped.
select id, cancel_reason from job
where id in (select value from json_each(:ids)) and namespace = :namespace
  and cancel_reason is not null
