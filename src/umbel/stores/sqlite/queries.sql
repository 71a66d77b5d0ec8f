-- name: find_live
-- One live job.
select id, task, namespace, queue, state, kind, priority, attempt, deaths, created, not_before,
       expires, claimed, null, worker, content_type, body, null, null, null,
       coalesce(cancel_reason, ''), attempts, progress_done, progress_of, unique_key, traceparent,
       headers
from job where namespace = :namespace and id = :id

-- name: find_finished
-- One finished job.
select id, task, namespace, queue, state, kind, priority, attempt, deaths, created, not_before,
       expires, claimed, finished, worker, content_type, body, result_type, result, failure,
       reason, attempts, progress_done, progress_of, unique_key, traceparent, headers
from record where namespace = :namespace and id = :id

-- name: list_live
-- Live jobs that match, newest first.
select id, task, namespace, queue, state, kind, priority, attempt, deaths, created, not_before,
       expires, claimed, null, worker, content_type, body, null, null, null,
       coalesce(cancel_reason, ''), attempts, progress_done, progress_of, unique_key, traceparent,
       headers
from job
where namespace = :namespace
  and (:states is null or state in (select value from json_each(:states)))
  and (:task is null or task = :task)
  and (:queue is null or queue = :queue)
  and (:worker is null or worker = :worker)
order by seq desc limit :limit

-- name: list_finished
-- Finished jobs that match, last finished first.
select id, task, namespace, queue, state, kind, priority, attempt, deaths, created, not_before,
       expires, claimed, finished, worker, content_type, body, result_type, result, failure,
       reason, attempts, progress_done, progress_of, unique_key, traceparent, headers
from record
where namespace = :namespace
  and (:states is null or state in (select value from json_each(:states)))
  and (:task is null or task = :task)
  and (:queue is null or queue = :queue)
  and (:worker is null or worker = :worker)
order by finished desc limit :limit

-- name: is_finished
-- Whether a job is final (1), lives (0), or is unknown (no row).
select 1 from record where namespace = :namespace and id = :id
union all select 0 from job where namespace = :namespace and id = :id

-- name: progress
-- Notes progress under the lease that is held now; an older one changes nothing.
update job set progress_done = :done, progress_of = :of
where id = :id and fence = :fence and state = 'running'

-- name: replay
-- A finished job that gave no result is queued anew with its id and story, changed where asked.
insert into job (id, namespace, queue, kind, task, type, state, priority, content_type, body, created,
                 expires, attempt, max_deaths, traceparent, headers, fence, attempts)
select id, namespace, coalesce(:queue, queue), coalesce(:kind, kind), coalesce(:task, task), type,
       'queued', coalesce(:priority, priority), coalesce(:content_type, content_type),
       coalesce(:body, body), created, null, 1, max_deaths, traceparent, headers, fence, attempts
from record where namespace = :namespace and id = :id and state <> 'succeeded'

-- name: remove
-- Forgets one finished job.
delete from record where namespace = :namespace and id = :id

-- name: prune_old
-- Forgets finished jobs from before a moment; buried ones stay.
delete from record where id in (
  select id from record
  where namespace = :namespace and finished < :before and state <> 'buried'
  order by finished limit :limit)

-- name: prune_beyond
-- Forgets the oldest finished jobs beyond a count; buried ones stay and do not count.
delete from record where id in (
  select id from (select id, finished from record
                  where namespace = :namespace and state <> 'buried'
                  order by finished desc, id desc limit -1 offset :keep)
  order by finished, id limit :limit)

-- name: enlist
-- A life begins; repeating it changes nothing.
insert into worker (incarnation, namespace, entry, name, started, beaten)
values (:incarnation, :namespace, :entry, :name, :now, :now) on conflict do nothing

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

-- name: epoch
-- The number of the last change of control state.
select epoch from control where namespace = :namespace

-- name: next_epoch
-- One more change of control state.
insert into control (namespace, epoch) values (:namespace, 1)
on conflict (namespace) do update set epoch = epoch + 1 returning epoch

-- name: pauses
-- What is paused.
select scope, name, since, reason from pause where namespace = :namespace order by scope, name

-- name: pause
-- Pauses; the first reason stays.
insert into pause (namespace, scope, name, since, reason)
values (:namespace, :scope, :name, :now, :reason) on conflict do nothing

-- name: resume
-- Resumes.
delete from pause where namespace = :namespace and scope = :scope and name = :name

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
where id in (select value from json_each(:ids)) and cancel_reason is not null
