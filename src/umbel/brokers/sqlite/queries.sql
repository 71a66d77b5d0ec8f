-- name: insert_job
-- Adds a job once: an id that lives or has finished, or a unique key in use, adds nothing.
-- Numbers, in the order of the columns: binding names takes as long as inserting. ?19 is the state
-- of what is not scheduled.
insert into job (id, namespace, queue, kind, task, type, priority, content_type, body, created,
                 not_before, expires, attempt, max_deaths, unique_key, traceparent, headers, state)
select ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17,
       case when ?11 > ?18 then 'scheduled' else ?19 end
where not exists (select 1 from record where id = ?1)
on conflict do nothing

-- name: known_id
-- Whether an id lives or has finished.
select 1 from job where id = :id union all select 1 from record where id = :id

-- name: unique_holder
-- The live job that holds a unique key.
select id, state from job where namespace = :namespace and unique_key = :unique_key

-- name: ready_lane
-- Whether a lane has something to claim; reads only, so it never waits for a writer.
select 1 from job
where namespace = :namespace and queue = :queue and kind = :kind and state = 'queued' limit 1

-- name: waiting_lane
-- Whether a lane has something that a fetch would give: not paused, queued or due by now.
select 1 from job
where namespace = :namespace and queue = :queue and kind = :kind
  and (state in ('queued', 'sent') or (state = 'scheduled' and not_before <= :now))
  and task not in (select name from pause where namespace = :namespace and scope = 'task')
limit 1

-- name: next_due
-- When the next scheduled job of the namespace becomes due.
select min(not_before) from job where namespace = :namespace and state = 'scheduled'

-- name: promote
-- Scheduled jobs whose time has come become queued; at most a thousand a call.
update job set state = 'queued'
where seq in (select seq from job
              where namespace = :namespace and state = 'scheduled' and not_before <= :now
              order by not_before limit 1000)

-- name: enlisted
-- Whether an incarnation lives.
select name from worker where incarnation = :owner

-- name: pauses
-- What is paused at this very moment.
select scope, name from pause where namespace = :namespace

-- name: lane_front
-- The first jobs of a lane, without taking them.
select kind, priority, seq from job
where namespace = :namespace and queue = :queue and kind = :kind and state = 'queued'
  and task not in (select name from pause where namespace = :namespace and scope = 'task')
order by priority desc, seq limit :limit

-- name: claim
-- Takes the first jobs of a lane, highest priority first, then oldest; raises their fence.
update job
set state = 'running', owner = :owner, worker = :worker, fence = min(fence, 9223372036854775806) + 1,
    claimed = :now
where seq in (
  select seq from job
  where namespace = :namespace and queue = :queue and kind = :kind and state = 'queued'
    and task not in (select name from pause where namespace = :namespace and scope = 'task')
  order by priority desc, seq limit :limit)
returning seq, id, queue, kind, task, priority, content_type, body, created, not_before, expires,
          attempt, max_deaths, unique_key, traceparent, headers, deaths, sections, fence,
          type

-- name: sort
-- Queued jobs whose sender did not know the task's kind get it from somebody who does. Those that
-- were sent are to be sent again, to where that kind is waited for.
update job set kind = (select value from json_each(:kinds) where key = task), state = 'queued'
where namespace = :namespace and queue in (select value from json_each(:queues)) and kind = ''
  and state in ('queued', 'sent') and task in (select key from json_each(:kinds))

-- name: unsorted
-- Whether there is such a job; reads only.
select 1 from job
where namespace = :namespace and queue in (select value from json_each(:queues)) and kind = ''
  and state in ('queued', 'sent') and task in (select key from json_each(:kinds)) limit 1

-- name: held
-- What an owner holds according to us.
select id, fence, claimed from job where owner = :owner and state = 'running'

-- name: give_back
-- A claimed job its owner never received returns to its queue; no attempt, no death.
update job
set state = 'queued', owner = null, worker = null, progress_done = null, progress_of = null
where id = :id and owner = :owner and fence = :fence

-- name: finish
-- A job under this very lease becomes a record; anything else is left alone.
insert into record (id, namespace, queue, kind, task, type, state, priority, content_type, body, created,
                    not_before, expires, attempt, deaths, max_deaths, unique_key, traceparent,
                    headers, worker, fence, claimed, attempts, progress_done, progress_of, finished,
                    result_type, result, failure, reason)
select id, namespace, queue, kind, task, type, :state, priority, content_type, body, created, not_before,
       expires, attempt, deaths, max_deaths, unique_key, traceparent, headers, worker, fence,
       claimed, case attempts when '[]' then '[' || :attempt_story || ']' else json_insert(
         iif(json_array_length(attempts) < 100, attempts, json_remove(attempts, '$[0]')),
         '$[#]', json(:attempt_story)) end, progress_done, progress_of,
       :finished, :result_type, :result, :failure, :reason
from job where id = :id and owner = :owner and fence = :fence

-- name: delete_leased
-- The job under this very lease leaves the hot table.
delete from job where id = :id and owner = :owner and fence = :fence

-- name: sections
-- How often each retry section of a leased job has failed.
select sections from job where id = :id and owner = :owner and fence = :fence

-- name: again
-- The job under this very lease goes back to its queue, at once or later.
update job
set state = case when :delay > 0 then 'scheduled' else 'queued' end,
    not_before = case when :delay > 0 then :now + :delay else not_before end,
    attempt = attempt + :cost,
    sections = coalesce(:sections, sections),
    attempts = json_insert(
      iif(json_array_length(attempts) < 100, attempts, json_remove(attempts, '$[0]')),
      '$[#]', json(:attempt_story)),
    owner = null, worker = null, progress_done = null, progress_of = null
where id = :id and owner = :owner and fence = :fence

-- name: orphans
-- Running jobs whose owner is not enlisted: its lease has lapsed.
select id, owner, fence, worker, claimed, attempt, deaths, blame, max_deaths from job
where namespace = :namespace and state = 'running'
  and not exists (select 1 from worker where incarnation = job.owner)

-- name: count_death
-- A job whose worker died goes back to its queue, at once or later, with the death counted.
update job
set state = case when :delay > 0 then 'scheduled' else 'queued' end,
    not_before = case when :delay > 0 then :now + :delay else not_before end,
    owner = null, worker = null, deaths = min(deaths, 9223372036854775806) + 1,
    blame = :blame,
    progress_done = null, progress_of = null,
    attempts = json_insert(
      iif(json_array_length(attempts) < 100, attempts, json_remove(attempts, '$[0]')),
      '$[#]', json(:attempt_story))
where id = :id and owner = :owner and fence = :fence

-- name: add_death
-- Counts the death that is the last straw, before the job is buried.
update job set deaths = min(deaths, 9223372036854775806) + 1
where id = :id and owner = :owner and fence = :fence

-- name: depths
-- Live jobs by queue and state.
select queue, case state when 'sent' then 'queued' else state end, count(*), min(created) from job
where namespace = :namespace group by 1, 2

-- name: idle_ids
-- Jobs of a queue that do not run.
select id from job where namespace = :namespace and queue = :queue and state <> 'running'

-- name: move
-- Everything that does not run changes its queue.
update job set queue = :target, state = case state when 'sent' then 'queued' else state end
where namespace = :namespace and queue = :source and state <> 'running'

-- name: unsent
-- The first queued jobs of a lane whose task is not paused.
select seq, id, queue, kind, task, priority, content_type, body, created, not_before, expires,
       attempt, max_deaths, unique_key, traceparent, headers, deaths, sections, fence, type
from job
where namespace = :namespace and queue = :queue and kind = :kind and state = 'queued'
  and task not in (select name from pause where namespace = :namespace and scope = 'task')
order by priority desc, seq limit :limit

-- name: sent
-- A queued job is in another broker now.
update job set state = 'sent' where id = :id and state = 'queued'

-- name: hold_back
-- A job whose message came while it is paused is to be sent again; no row when it is not paused.
update job set state = 'queued'
where id = :id and namespace = :namespace and queue = :queue and state in ('queued', 'sent')
  and exists (select 1 from pause p
              where p.namespace = :namespace
                and (p.scope = 'all' or (p.scope = 'queue' and p.name = job.queue)
                     or (p.scope = 'task' and p.name = job.task)))
returning 1

-- name: take
-- Claims this very job in the queue its message came from; raises its fence.
update job
set state = 'running', owner = :owner, worker = :worker, fence = min(fence, 9223372036854775806) + 1,
    claimed = :now
where id = :id and namespace = :namespace and queue = :queue and state in ('queued', 'sent')
returning seq, id, queue, kind, task, priority, content_type, body, created, not_before, expires,
          attempt, max_deaths, unique_key, traceparent, headers, deaths, sections, fence,
          type

-- name: recall
-- What a queue sent is to be sent again.
update job set state = 'queued'
where namespace = :namespace and queue = :queue and state = 'sent'
