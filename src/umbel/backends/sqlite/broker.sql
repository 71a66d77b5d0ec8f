-- name: insert_job
-- Adds a job unless its id is live or finished, or its unique key is in use. Parameters have no names,
-- because binding names takes as long as inserting. Idle is the state of a job that is neither
-- scheduled nor has to wait at a gate, or "blocked".
insert into job (id, namespace, queue, kind, task, type, priority, content_type, body, created,
                 not_before, expires, attempt, max_deaths, unique_key, traceparent, headers, state, gates, gate)
select id, namespace, queue, kind, task, type, priority, content_type, body, created,
       not_before, expires, attempt, max_deaths, unique_key, traceparent, headers,
       case when idle = 'blocked' then 'blocked' when not_before > now then 'scheduled'
            when gates is not null then 'waiting' else idle end,
       gates, case when not_before > now or idle = 'blocked' then null else gate end
from (select ? as id, ? as namespace, ? as queue, ? as kind, ? as task, ? as type, ? as priority,
             ? as content_type, ? as body, ? as created, ? as not_before, ? as expires, ? as attempt,
             ? as max_deaths, ? as unique_key, ? as traceparent, ? as headers, ? as now, ? as idle,
             ? as gates, ? as gate) as new
where not exists (select 1 from record where record.id = new.id and record.namespace = new.namespace)
on conflict do nothing

-- name: new_jobs
-- Creates the table for the jobs of a batch. It belongs to the connection, so no lock is needed for
-- it.
create temp table if not exists new_job (
  id, namespace, queue, kind, task, type, priority, content_type, body, created, not_before, expires,
  attempt, max_deaths, unique_key, traceparent, headers, now, idle, gates, gate)

-- name: forget_new_jobs
-- Deletes the jobs of the last batch.
delete from temp.new_job

-- name: add_new_job
-- Adds a job to the batch, with the parameters of insert_job.
insert into temp.new_job values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: insert_new_jobs
-- Adds the whole batch, or nothing if an id is live or finished or a unique key is in use. It is
-- one statement, so a thread that a signal handler interrupts never holds the file's lock.
insert into job (id, namespace, queue, kind, task, type, priority, content_type, body, created,
                 not_before, expires, attempt, max_deaths, unique_key, traceparent, headers, state, gates, gate)
select id, namespace, queue, kind, task, type, priority, content_type, body, created,
       not_before, expires, attempt, max_deaths, unique_key, traceparent, headers,
       case when not_before > now then 'scheduled' when gates is not null then 'waiting' else idle end,
       gates, case when not_before > now then null else gate end
from temp.new_job
where not exists (
  select 1 from temp.new_job as new
  where exists (select 1 from record where record.id = new.id)
     or exists (select 1 from job where job.id = new.id)
     or new.unique_key is not null and exists (
          select 1 from job where job.namespace = new.namespace and job.unique_key = new.unique_key))
order by new_job.rowid

-- name: known_id
-- Whether an id is live or finished.
select 1 from job where id = :id and namespace = :namespace
union all select 1 from record where id = :id and namespace = :namespace

-- name: unique_holder
-- The live job that holds a unique key.
select id, state from job where namespace = :namespace and unique_key = :unique_key

-- name: ready_lane
-- Whether a lane has a queued job. It only reads, so it never waits for a writer.
select 1 from job
where namespace = :namespace and queue = :queue and kind = :kind and state = 'queued' limit 1

-- name: waiting_lane
-- Whether a lane has a job that a fetch would return: not paused, not of the excluded tasks, and
-- queued, sent or due.
select 1 from job
where namespace = :namespace and queue = :queue and kind = :kind
  and (state in ('queued', 'sent') or (state = 'scheduled' and not_before <= :now and gates is null))
  and task not in (select name from pause where namespace = :namespace and scope = 'task' and until > :now)
  and task not in (select value from json_each(:without))
union all
select 1 from waiting_list
where namespace = :namespace and queue = :queue and kind = :kind and next_check <= :now
limit 1

-- name: next_due
-- When the next scheduled job of the namespace is due.
select min(not_before) from job where namespace = :namespace and state = 'scheduled'

-- name: promote
-- Queues scheduled jobs that are due, or moves them to their first gate; at most a thousand per
-- call.
update job set state = case when gates is null then 'queued' else 'waiting' end,
               gate = json_extract(gates, '$[0]')
where seq in (select seq from job
              where namespace = :namespace and state = 'scheduled' and not_before <= :now
              order by not_before limit 1000)

-- name: worker_name
-- The name of a registered incarnation.
select name from worker where incarnation = :owner

-- name: pauses
-- What is paused now.
select scope, name from pause where namespace = :namespace and until > :now

-- name: lane_front
-- The first jobs of a lane, without claiming them.
select kind, priority, seq from job
where namespace = :namespace and queue = :queue and kind = :kind and state = 'queued'
  and task not in (select name from pause where namespace = :namespace and scope = 'task' and until > :now)
  and task not in (select value from json_each(:without))
order by priority desc, seq limit :limit

-- name: claim
-- Claims the first jobs of a lane, highest priority first, then oldest, and increments their fence.
update job
set state = 'running', owner = :owner, worker = :worker, fence = min(fence, 9223372036854775806) + 1,
    claimed = :now
where seq in (
  select seq from job
  where namespace = :namespace and queue = :queue and kind = :kind and state = 'queued'
    and task not in (select name from pause where namespace = :namespace and scope = 'task' and until > :now)
    and task not in (select value from json_each(:without))
  order by priority desc, seq limit :limit)
returning seq, id, queue, kind, task, priority, content_type, body, created, not_before, expires,
          attempt, max_deaths, unique_key, traceparent, headers, deaths, sections, fence,
          type, gates, slots

-- name: assign_kinds
-- Sets the kind of queued jobs whose sender did not know it. Sent jobs are sent again, to the lane
-- of that kind.
update job set kind = (select value from json_each(:kinds) where key = task),
               state = case state when 'sent' then 'queued' else state end
where namespace = :namespace and queue in (select value from json_each(:queues)) and kind = ''
  and state in ('waiting', 'queued', 'sent') and task in (select key from json_each(:kinds))

-- name: has_unassigned_kinds
-- Whether there is such a job. It only reads.
select 1 from job
where namespace = :namespace and queue in (select value from json_each(:queues)) and kind = ''
  and state in ('waiting', 'queued', 'sent') and task in (select key from json_each(:kinds)) limit 1

-- name: held
-- The jobs that an owner holds according to the store.
select id, fence, claimed from job where owner = :owner and state = 'running'

-- Id, owner and fence identify a lease. An owner is a worker of one namespace, so that is enough.

-- name: give_back
-- Returns a claimed job that its owner never received to its queue. This is neither an attempt nor
-- a death.
update job
set state = case when gates is null then 'queued' else 'waiting' end,
    queue = coalesce(json_extract(slots, '$[#-1].home'), queue),
    gate = json_extract(gates, '$[0]'), slots = null,
    owner = null, worker = null, progress_done = null, progress_of = null
where id = :id and owner = :owner and fence = :fence

-- name: finish
-- Turns the job under this lease into a record. Nothing changes if the lease is not held.
insert into record (id, namespace, queue, kind, task, type, state, priority, content_type, body, created,
                    not_before, expires, attempt, deaths, lapses, max_deaths, unique_key, traceparent,
                    headers, worker, fence, claimed, attempts, progress_done, progress_of, finished,
                    result_type, result, failure, reason, keep_until)
select id, namespace, coalesce(json_extract(slots, '$[#-1].home'), queue), kind, task, type, :state, priority, content_type, body, created, not_before,
       expires, attempt, deaths, lapses, max_deaths, unique_key, traceparent, headers, worker, fence,
       claimed, case attempts when '[]' then '[' || :attempt_json || ']' else json_insert(
         iif(json_array_length(attempts) < 100, attempts, json_remove(attempts, '$[0]')),
         '$[#]', json(:attempt_json)) end, progress_done, progress_of,
       :finished, :result_type, :result, :failure, :reason, :finished + :keep_for
from job where id = :id and owner = :owner and fence = :fence

-- name: free_slots
-- Frees the slots of the job under this lease.
update job set slots = null where id = :id and owner = :owner and fence = :fence and slots is not null

-- name: held_slots
-- The slots that these jobs of these owners hold, per gate.
select job.namespace, json_extract(slot.value, '$.gate') as key,
       coalesce(json_extract(slot.value, '$.route'), 0) as route, count(*) as many,
       max(json_extract(slot.value, '$.member') is not null) as named
from job, json_each(job.slots) slot
where job.id in (select value from json_each(:ids)) and job.slots is not null
  and job.owner in (select value from json_each(:owners))
group by 1, 2, 3

-- name: free_gate
-- Frees slots of a gate.
update gate set held = held - :many where namespace = :namespace and key = :key

-- name: forget_gate
-- Deletes the gate of a token that no job uses.
delete from gate
where namespace = :namespace and key = :key and held = 0 and paces = '[]' and instr(key, '#')

-- name: check_lanes
-- Checks the lanes of a gate again.
update waiting_list set next_check = 0 where namespace = :namespace and key = :key

-- name: return_members
-- Makes the members of these jobs available again.
update member set job = null, condition = iif(condition = 'leaving', 'gone', condition)
where job in (select value from json_each(:ids)) and namespace = :namespace

-- name: free_route
-- Counts jobs of a route as done.
update route set held = held - :many where id = :route

-- name: is_part
-- Whether the job is a part of a join.
select 1 from job_edge where job = :id limit 1

-- name: forget_steps
-- Deletes the steps of the job under this lease, of which no record is kept.
delete from step
where job = :id and namespace = (select namespace from job
                                  where id = :id and owner = :owner and fence = :fence)

-- name: delete_leased
-- Deletes the live job under this lease.
delete from job where id = :id and owner = :owner and fence = :fence

-- name: sections
-- How often each retry section of the job under this lease has failed.
select sections from job where id = :id and owner = :owner and fence = :fence

-- name: again
-- Returns the job under this lease to its queue, at once or after a delay.
update job
set state = case when :delay > 0 then 'scheduled' when gates is null then 'queued' else 'waiting' end,
    queue = coalesce(json_extract(slots, '$[#-1].home'), queue),
    gate = case when :delay > 0 then null else json_extract(gates, '$[0]') end, slots = null,
    not_before = case when :delay > 0 then :now + :delay else not_before end,
    attempt = attempt + :cost,
    sections = coalesce(:sections, sections),
    attempts = json_insert(
      iif(json_array_length(attempts) < 100, attempts, json_remove(attempts, '$[0]')),
      '$[#]', json(:attempt_json)),
    owner = null, worker = null, progress_done = null, progress_of = null
where id = :id and owner = :owner and fence = :fence

-- name: park
-- Moves the job under this lease to its first gate, or queues it if it has none. This is not an
-- attempt, so its history does not grow.
update job
set state = case when :gates is null then 'queued' else 'waiting' end,
    queue = coalesce(json_extract(slots, '$[#-1].home'), queue),
    gates = :gates, gate = json_extract(:gates, '$[0]'), slots = null,
    owner = null, worker = null, progress_done = null, progress_of = null
where id = :id and owner = :owner and fence = :fence

-- name: orphans
-- Running jobs whose owner is not registered: their leases have lapsed.
select id, owner, fence, worker, claimed, attempt, deaths, blame, max_deaths, lapses,
       exists (select 1 from lapse where incarnation = job.owner)
from job
where namespace = :namespace and state = 'running'
  and not exists (select 1 from worker where incarnation = job.owner)

-- name: count_death
-- Returns a job whose worker died to its queue, at once or after a delay, and counts the death.
update job
set state = case when :delay > 0 then 'scheduled' when gates is null then 'queued' else 'waiting' end,
    queue = coalesce(json_extract(slots, '$[#-1].home'), queue),
    gate = case when :delay > 0 then null else json_extract(gates, '$[0]') end, slots = null,
    not_before = case when :delay > 0 then :now + :delay else not_before end,
    owner = null, worker = null, deaths = min(deaths, 9223372036854775806) + 1,
    blame = :blame,
    progress_done = null, progress_of = null,
    attempts = json_insert(
      iif(json_array_length(attempts) < 100, attempts, json_remove(attempts, '$[0]')),
      '$[#]', json(:attempt_json))
where id = :id and owner = :owner and fence = :fence

-- name: add_death
-- Counts the last death before the job is buried.
update job set deaths = min(deaths, 9223372036854775806) + 1
where id = :id and owner = :owner and fence = :fence

-- name: depths
-- The number of live jobs by queue and state.
select queue, case state when 'sent' then 'queued' else state end, count(*), min(created) from job
where namespace = :namespace group by 1, 2

-- name: expired_ids
-- Jobs that do not run and whose expiry has passed.
select id from job
where namespace = :namespace and expires <= :now and state <> 'running' order by expires limit :limit

-- name: idle_ids
-- Jobs of a queue that do not run.
select id from job where namespace = :namespace and queue = :queue and state <> 'running'

-- name: move
-- Moves all jobs that do not run to another queue.
update job set queue = :target, state = case state when 'sent' then 'queued' else state end
where namespace = :namespace and queue = :source and state <> 'running'
  and json_extract(slots, '$[#-1].home') is null  -- routed jobs stay with their worker

-- name: unsent
-- The first queued jobs of a lane whose task is not paused.
select seq, id, queue, kind, task, priority, content_type, body, created, not_before, expires,
       attempt, max_deaths, unique_key, traceparent, headers, deaths, sections, fence, type, gates,
       slots
from job
where namespace = :namespace and queue = :queue and kind = :kind and state = 'queued'
  and task not in (select name from pause where namespace = :namespace and scope = 'task' and until > :now)
order by priority desc, seq limit :limit

-- name: sent
-- Marks a queued job as sent to the transport, unless it has changed since it was offered.
update job set state = 'sent'
where id = :id and namespace = :namespace and state = 'queued' and fence = :fence and queue = :queue

-- name: hold_back
-- Queues a job again whose message arrived while it is paused. No row if it is not paused.
update job set state = 'queued', fence = min(fence, 9223372036854775806) + 1
where id = :id and namespace = :namespace and queue = :queue and state in ('queued', 'sent')
  and exists (select 1 from pause p
              where p.namespace = :namespace and p.until > :now
                and (p.scope = 'all' or (p.scope = 'queue' and p.name = job.queue)
                     or (p.scope = 'task' and p.name = job.task)))
returning 1

-- name: take
-- Claims a job in the queue that its message came from, and increments its fence.
update job
set state = 'running', owner = :owner, worker = :worker, fence = min(fence, 9223372036854775806) + 1,
    claimed = :now
where id = :id and namespace = :namespace and queue = :queue and state in ('queued', 'sent')
returning seq, id, queue, kind, task, priority, content_type, body, created, not_before, expires,
          attempt, max_deaths, unique_key, traceparent, headers, deaths, sections, fence,
          type, gates, slots

-- name: any_sent
-- Whether a lane has a sent job. It only reads, so it never waits for a writer.
select 1 from job
where namespace = :namespace and queue = :queue and kind = :kind and state = 'sent' limit 1

-- name: recall
-- Queues the sent jobs of a lane again.
update job set state = 'queued', fence = min(fence, 9223372036854775806) + 1
where namespace = :namespace and queue = :queue and kind = :kind and state = 'sent'

-- name: next_gate_check
-- When a job may pass a gate into one of these queues.
select min(next_check) from waiting_list
where namespace = :namespace and queue in (select value from json_each(:queues))
  and kind in (select value from json_each(:kinds))
  and not exists (select 1 from pause p
                  where p.namespace = :namespace and p.until > :now and p.scope = 'gate' and p.name = waiting_list.key)

-- name: grantable_lanes
-- The lanes of a queue where a job may pass a gate now, the least recently served first.
select key, kind from waiting_list
where namespace = :namespace and queue = :queue and next_check <= :now
  and kind in (select value from json_each(:kinds))
  and not exists (select 1 from pause p
                  where p.namespace = :namespace and p.until > :now and p.scope = 'gate' and p.name = waiting_list.key)
order by turn, key limit :limit

-- name: rule
-- The rule of a gate as declared, and the capacity that an operator has set.
select declared, (select capacity from limit_override o
                  where o.namespace = :namespace and o.rule = :rule and o.until > :now)
from rule where namespace = :namespace and name = :rule

-- name: gate
-- The held slots of a gate, and its paces.
select held, paces from gate where namespace = :namespace and key = :key

-- name: save_gate
-- Stores the held slots of a gate and its paces.
insert into gate (namespace, key, held, paces) values (:namespace, :key, :held, :paces)
on conflict do update set held = excluded.held, paces = excluded.paces

-- name: first_to_claim
-- The places of the queued jobs that a claim would take.
select priority, seq from job
where namespace = :namespace and queue = :queue and kind = :kind and state = 'queued'
  and slots is null
  and task not in (select name from pause where namespace = :namespace and scope = 'task' and until > :now)
  and task not in (select value from json_each(:without))
order by priority desc, seq limit :limit

-- name: gate_front
-- The first jobs of a lane.
select priority, seq, id, gates, slots from job
where namespace = :namespace and gate = :key and queue = :queue and kind = :kind
  and state = 'waiting'
  and task not in (select name from pause where namespace = :namespace and scope = 'task' and until > :now)
  and task not in (select value from json_each(:without))
order by priority desc, seq limit :limit

-- name: route_front
-- The first jobs of a lane at a route, and whether each ends if there is no route.
select seq, id, task, json_extract(headers, '$.onlyifrouted') is not null, slots from job
where namespace = :namespace and gate = :key and queue = :queue and kind = :kind
  and state = 'waiting'
  and task not in (select name from pause where namespace = :namespace and scope = 'task' and until > :now)
order by priority desc, seq limit :limit

-- name: routes_before
-- Whether an earlier job waits for the same route and will make it.
select 1 from job
where namespace = :namespace and gate = :key and state = 'waiting' and seq < :seq
  and json_extract(headers, '$.onlyifrouted') is null limit 1

-- name: move_to_inbox
-- Moves a job into the inbox of its worker.
update job set state = 'queued', gate = null, queue = :queue, slots = :slots
where id = :id and namespace = :namespace

-- name: has_waiting_job
-- Whether a job waits in a lane.
select 1 from job
where namespace = :namespace and gate = :key and queue = :queue and kind = :kind
  and state = 'waiting' limit 1

-- name: pass
-- Moves a job to its next gate or into its queue.
update job
set state = case when :gate is null then 'queued' else 'waiting' end, gate = :gate, slots = :slots
where id = :id and namespace = :namespace

-- name: finish_turn
-- Records that a lane had its turn.
update waiting_list
set next_check = :next_check, turn = 1 + (select max(turn) from waiting_list where namespace = :namespace)
where namespace = :namespace and key = :key and queue = :queue and kind = :kind

-- name: delete_lane
-- Deletes a lane without jobs.
delete from waiting_list
where namespace = :namespace and key = :key and queue = :queue and kind = :kind

-- name: free_members
-- Members of a pool that can be given to jobs, the least recently used first.
select name, data, fence from member
where namespace = :namespace and pool = :pool and condition = 'ready' and job is null
order by turn, name limit :limit

-- name: give_member
-- Gives a member to a job.
update member
set job = :id, fence = fence + 1,
    turn = 1 + (select max(turn) from member where namespace = :namespace and pool = :pool)
where namespace = :namespace and pool = :pool and name = :member
