-- name: insert_job
-- Adds a job once: an id that lives or has finished, or a unique key in use, adds nothing.
-- Numbers, in the order of the columns: binding names takes as long as inserting. ?19 is the state
-- of what is neither scheduled nor has to wait at a gate; ?20 the gates, ?21 the first of them.
insert into job (id, namespace, queue, kind, task, type, priority, content_type, body, created,
                 not_before, expires, attempt, max_deaths, unique_key, traceparent, headers, state, gates, line)
select ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17,
       case when ?11 > ?18 then 'scheduled' when ?20 is not null then 'waiting' else ?19 end,
       ?20, case when ?11 > ?18 then null else ?21 end
where not exists (select 1 from record where id = ?1 and namespace = ?2)
on conflict do nothing

-- name: new_jobs
-- Where the jobs of a batch are put first. It is the connection's own: nothing else waits for it.
create temp table if not exists new_job (
  id, namespace, queue, kind, task, type, priority, content_type, body, created, not_before, expires,
  attempt, max_deaths, unique_key, traceparent, headers, now, idle, gates, line)

-- name: forget_new_jobs
-- Those of the batch before.
delete from temp.new_job

-- name: add_new_job
-- One of the batch, as for insert_job.
insert into temp.new_job values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17,
                                 ?18, ?19, ?20, ?21)

-- name: insert_new_jobs
-- Adds the whole batch, or nothing if an id lives or has finished or a unique key is in use. It is one
-- statement: a thread that is suspended by a signal handler never holds the file's lock.
insert into job (id, namespace, queue, kind, task, type, priority, content_type, body, created,
                 not_before, expires, attempt, max_deaths, unique_key, traceparent, headers, state, gates, line)
select id, namespace, queue, kind, task, type, priority, content_type, body, created,
       not_before, expires, attempt, max_deaths, unique_key, traceparent, headers,
       case when not_before > now then 'scheduled' when gates is not null then 'waiting' else idle end,
       gates, case when not_before > now then null else line end
from temp.new_job
where not exists (
  select 1 from temp.new_job as new
  where exists (select 1 from record where record.id = new.id)
     or exists (select 1 from job where job.id = new.id)
     or new.unique_key is not null and exists (
          select 1 from job where job.namespace = new.namespace and job.unique_key = new.unique_key))
order by new_job.rowid

-- name: known_id
-- Whether an id lives or has finished.
select 1 from job where id = :id and namespace = :namespace
union all select 1 from record where id = :id and namespace = :namespace

-- name: unique_holder
-- The live job that holds a unique key.
select id, state from job where namespace = :namespace and unique_key = :unique_key

-- name: ready_lane
-- Whether a lane has something to claim; reads only, so it never waits for a writer.
select 1 from job
where namespace = :namespace and queue = :queue and kind = :kind and state = 'queued' limit 1

-- name: waiting_lane
-- Whether a lane has something that a fetch without some tasks would give: not paused, queued or due by
-- now.
select 1 from job
where namespace = :namespace and queue = :queue and kind = :kind
  and (state in ('queued', 'sent') or (state = 'scheduled' and not_before <= :now and gates is null))
  and task not in (select name from pause where namespace = :namespace and scope = 'task')
  and task not in (select value from json_each(:without))
union all
select 1 from line
where namespace = :namespace and queue = :queue and kind = :kind and look <= :now
limit 1

-- name: next_due
-- When the next scheduled job of the namespace becomes due.
select min(not_before) from job where namespace = :namespace and state = 'scheduled'

-- name: promote
-- Scheduled jobs whose time has come are queued, or wait at their first gate; at most a thousand a call.
update job set state = case when gates is null then 'queued' else 'waiting' end,
               line = json_extract(gates, '$[0]')
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
  and task not in (select value from json_each(:without))
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
    and task not in (select value from json_each(:without))
  order by priority desc, seq limit :limit)
returning seq, id, queue, kind, task, priority, content_type, body, created, not_before, expires,
          attempt, max_deaths, unique_key, traceparent, headers, deaths, sections, fence,
          type, gates, slots

-- name: sort
-- Queued jobs whose sender did not know the task's kind get it from somebody who does. Those that
-- were sent are to be sent again, to where that kind is waited for.
update job set kind = (select value from json_each(:kinds) where key = task),
               state = case state when 'sent' then 'queued' else state end
where namespace = :namespace and queue in (select value from json_each(:queues)) and kind = ''
  and state in ('waiting', 'queued', 'sent') and task in (select key from json_each(:kinds))

-- name: unsorted
-- Whether there is such a job; reads only.
select 1 from job
where namespace = :namespace and queue in (select value from json_each(:queues)) and kind = ''
  and state in ('waiting', 'queued', 'sent') and task in (select key from json_each(:kinds)) limit 1

-- name: held
-- What an owner holds according to us.
select id, fence, claimed from job where owner = :owner and state = 'running'

-- A lease is named by id, owner and fence. That is enough: an owner is a worker of one namespace.

-- name: give_back
-- A claimed job its owner never received returns to its queue; no attempt, no death.
update job
set state = case when gates is null then 'queued' else 'waiting' end,
    queue = coalesce(json_extract(slots, '$[#-1].home'), queue),
    line = json_extract(gates, '$[0]'), slots = null,
    owner = null, worker = null, progress_done = null, progress_of = null
where id = :id and owner = :owner and fence = :fence

-- name: finish
-- A job under this very lease becomes a record; anything else is left alone.
insert into record (id, namespace, queue, kind, task, type, state, priority, content_type, body, created,
                    not_before, expires, attempt, deaths, lapses, max_deaths, unique_key, traceparent,
                    headers, worker, fence, claimed, attempts, progress_done, progress_of, finished,
                    result_type, result, failure, reason)
select id, namespace, coalesce(json_extract(slots, '$[#-1].home'), queue), kind, task, type, :state, priority, content_type, body, created, not_before,
       expires, attempt, deaths, lapses, max_deaths, unique_key, traceparent, headers, worker, fence,
       claimed, case attempts when '[]' then '[' || :attempt_story || ']' else json_insert(
         iif(json_array_length(attempts) < 100, attempts, json_remove(attempts, '$[0]')),
         '$[#]', json(:attempt_story)) end, progress_done, progress_of,
       :finished, :result_type, :result, :failure, :reason
from job where id = :id and owner = :owner and fence = :fence

-- name: free_slots
-- What the job under this very lease holds is free again.
update job set slots = null where id = :id and owner = :owner and fence = :fence and slots is not null

-- name: held_slots
-- What jobs of these owners hold together, gate by gate.
select job.namespace, json_extract(slot.value, '$.gate') as key,
       coalesce(json_extract(slot.value, '$.route'), 0) as route, count(*) as many,
       max(json_extract(slot.value, '$.member') is not null) as named
from job, json_each(job.slots) slot
where job.id in (select value from json_each(:ids)) and job.slots is not null
  and job.owner in (select value from json_each(:owners))
group by 1, 2, 3

-- name: free_gate
-- So many are free again.
update gate set held = held - :many where namespace = :namespace and key = :key

-- name: forget_gate
-- Of a token that nobody uses.
delete from gate
where namespace = :namespace and key = :key and held = 0 and paces = '[]' and instr(key, '#')

-- name: look_at_line
-- Somebody may pass.
update line set look = 0 where namespace = :namespace and key = :key

-- name: return_members
-- They can be handed out again.
update member set job = null, condition = iif(condition = 'leaving', 'gone', condition)
where job in (select value from json_each(:ids)) and namespace = :namespace

-- name: free_route
-- So many of those that went by it are done.
update route set held = held - :many where id = :route

-- name: forget_steps
-- Nothing will be left of the job under this very lease.
delete from step
where job = :id and namespace = (select namespace from job
                                  where id = :id and owner = :owner and fence = :fence)

-- name: delete_leased
-- The job under this very lease leaves the hot table.
delete from job where id = :id and owner = :owner and fence = :fence

-- name: sections
-- How often each retry section of a leased job has failed.
select sections from job where id = :id and owner = :owner and fence = :fence

-- name: again
-- The job under this very lease goes back to its queue, at once or later.
update job
set state = case when :delay > 0 then 'scheduled' when gates is null then 'queued' else 'waiting' end,
    queue = coalesce(json_extract(slots, '$[#-1].home'), queue),
    line = case when :delay > 0 then null else json_extract(gates, '$[0]') end, slots = null,
    not_before = case when :delay > 0 then :now + :delay else not_before end,
    attempt = attempt + :cost,
    sections = coalesce(:sections, sections),
    attempts = json_insert(
      iif(json_array_length(attempts) < 100, attempts, json_remove(attempts, '$[0]')),
      '$[#]', json(:attempt_story)),
    owner = null, worker = null, progress_done = null, progress_of = null
where id = :id and owner = :owner and fence = :fence

-- name: park
-- The job under this very lease waits at its first gate, or is queued when it has none. Not an
-- attempt: its story does not grow.
update job
set state = case when :gates is null then 'queued' else 'waiting' end,
    queue = coalesce(json_extract(slots, '$[#-1].home'), queue),
    gates = :gates, line = json_extract(:gates, '$[0]'), slots = null,
    owner = null, worker = null, progress_done = null, progress_of = null
where id = :id and owner = :owner and fence = :fence

-- name: orphans
-- Running jobs whose owner is not enlisted: its lease has lapsed.
select id, owner, fence, worker, claimed, attempt, deaths, blame, max_deaths, lapses,
       exists (select 1 from lapse where incarnation = job.owner)
from job
where namespace = :namespace and state = 'running'
  and not exists (select 1 from worker where incarnation = job.owner)

-- name: count_death
-- A job whose worker died goes back to its queue, at once or later, with the death counted.
update job
set state = case when :delay > 0 then 'scheduled' when gates is null then 'queued' else 'waiting' end,
    queue = coalesce(json_extract(slots, '$[#-1].home'), queue),
    line = case when :delay > 0 then null else json_extract(gates, '$[0]') end, slots = null,
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
  and json_extract(slots, '$[#-1].home') is null  -- what went there by a route is that worker's

-- name: unsent
-- The first queued jobs of a lane whose task is not paused.
select seq, id, queue, kind, task, priority, content_type, body, created, not_before, expires,
       attempt, max_deaths, unique_key, traceparent, headers, deaths, sections, fence, type, gates,
       slots
from job
where namespace = :namespace and queue = :queue and kind = :kind and state = 'queued'
  and task not in (select name from pause where namespace = :namespace and scope = 'task')
order by priority desc, seq limit :limit

-- name: sent
-- A queued job is in another broker now, if it is what it was when it was given out.
update job set state = 'sent'
where id = :id and namespace = :namespace and state = 'queued' and fence = :fence and queue = :queue

-- name: hold_back
-- A job whose message came while it is paused is to be sent again; no row when it is not paused.
update job set state = 'queued', fence = min(fence, 9223372036854775806) + 1
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
          type, gates, slots

-- name: any_sent
-- Whether anything was sent to a lane; a look that waits for no writer.
select 1 from job
where namespace = :namespace and queue = :queue and kind = :kind and state = 'sent' limit 1

-- name: unsend
-- It was noted as sent and may not have been.
update job set state = 'queued', fence = min(fence, 9223372036854775806) + 1
where id = :id and namespace = :namespace and state = 'sent'

-- name: recall
-- What was sent to a lane is to be sent again.
update job set state = 'queued', fence = min(fence, 9223372036854775806) + 1
where namespace = :namespace and queue = :queue and kind = :kind and state = 'sent'

-- name: next_look
-- When somebody may pass a gate into one of these queues.
select min(look) from line
where namespace = :namespace and queue in (select value from json_each(:queues))
  and kind in (select value from json_each(:kinds))
  and not exists (select 1 from pause p
                  where p.namespace = :namespace and p.scope = 'gate' and p.name = line.key)

-- name: lines
-- The lanes of a queue where somebody may pass now, who was served last at the end.
select key, kind from line
where namespace = :namespace and queue = :queue and look <= :now
  and kind in (select value from json_each(:kinds))
  and not exists (select 1 from pause p
                  where p.namespace = :namespace and p.scope = 'gate' and p.name = line.key)
order by turn, key limit :limit

-- name: rule
-- What a gate goes by: as declared, and as an operator wants it.
select declared, imposed from rule where namespace = :namespace and name = :rule

-- name: gate
-- How many slots of a gate are held, and its paces.
select held, paces from gate where namespace = :namespace and key = :key

-- name: save_gate
-- The same, changed.
insert into gate (namespace, key, held, paces) values (:namespace, :key, :held, :paces)
on conflict do update set held = excluded.held, paces = excluded.paces

-- name: first_to_claim
-- The places of those that a claim would take of what is in the queue and had no gate to pass.
select priority, seq from job
where namespace = :namespace and queue = :queue and kind = :kind and state = 'queued'
  and slots is null
  and task not in (select name from pause where namespace = :namespace and scope = 'task')
  and task not in (select value from json_each(:without))
order by priority desc, seq limit :limit

-- name: line_front
-- Who is first in a lane.
select priority, seq, id, gates, slots from job
where namespace = :namespace and line = :key and queue = :queue and kind = :kind
  and state = 'waiting'
  and task not in (select name from pause where namespace = :namespace and scope = 'task')
  and task not in (select value from json_each(:without))
order by priority desc, seq limit :limit

-- name: route_front
-- Who is first in a lane before a worker, and whether it is to end where there is no route.
select seq, id, task, json_extract(headers, '$.onlyifrouted') is not null, slots from job
where namespace = :namespace and line = :key and queue = :queue and kind = :kind
  and state = 'waiting'
  and task not in (select name from pause where namespace = :namespace and scope = 'task')
order by priority desc, seq limit :limit

-- name: routes_before
-- Whether somebody who came before waits for the same worker, and will make the route.
select 1 from job
where namespace = :namespace and line = :key and state = 'waiting' and seq < :seq
  and json_extract(headers, '$.onlyifrouted') is null limit 1

-- name: send_on
-- A job goes into the queue of its worker.
update job set state = 'queued', line = null, queue = :queue, slots = :slots
where id = :id and namespace = :namespace

-- name: somebody_waits
-- Whether anybody is in a lane.
select 1 from job
where namespace = :namespace and line = :key and queue = :queue and kind = :kind
  and state = 'waiting' limit 1

-- name: pass
-- A job goes on, to its next gate or into its queue.
update job
set state = case when :line is null then 'queued' else 'waiting' end, line = :line, slots = :slots
where id = :id and namespace = :namespace

-- name: served
-- A lane has had its turn.
update line
set look = :look, turn = 1 + (select max(turn) from line where namespace = :namespace)
where namespace = :namespace and key = :key and queue = :queue and kind = :kind

-- name: line_ends
-- Nobody is in this lane any more.
delete from line
where namespace = :namespace and key = :key and queue = :queue and kind = :kind

-- name: free_members
-- Those of a pool that can be handed out, the least recently used first.
select name, data, fence from member
where namespace = :namespace and pool = :pool and condition = 'ready' and job is null
order by turn, name limit :limit

-- name: hand_out
-- A member goes to a job.
update member
set job = :id, fence = fence + 1,
    turn = 1 + (select max(turn) from member where namespace = :namespace and pool = :pool)
where namespace = :namespace and pool = :pool and name = :member
