-- name: lock_publication
-- Of several transactions that add the same publication, lets one at a time find out whether it is known.
select pg_advisory_xact_lock(hashtextextended('$channel/' || %(namespace)s || '/' || %(id)s, 0))

-- name: add_joins
-- Adds joins. A join that exists is not changed. Returns the ids of those that were added.
insert into $schema.job_join (namespace, id, group_id, fire, held)
select %(namespace)s, id, group_id, fire, case when held then statement_timestamp() end
from unnest(%(ids)s::text[], %(groups)s::text[], %(fires)s::text[], %(held)s::boolean[])
  as j (id, group_id, fire, held)
order by id
on conflict do nothing
returning id

-- name: open_joins
-- Those of these joins to which parts and waiting jobs may be added, locked in the order of their ids.
select id from $schema.job_join
where namespace = %(namespace)s and id = any(%(joins)s::text[]) and not done
  and (held is not null or id = any(%(new)s::text[]))
order by id for update

-- name: mark_parts
-- Marks live jobs as parts, so that their ends are counted. The lock makes an end at the same moment wait.
-- Returns their ids.
with found as materialized (
  select id from $schema.job
  where id = any(%(jobs)s::uuid[]) and namespace = %(namespace)s order by id for update
)
update $schema.job j set part = true from found where j.id = found.id and j.namespace = %(namespace)s
returning j.id::text

-- name: lock_records
-- Those of these jobs that have ended. Until the end of the transaction they are neither deleted nor
-- replayed.
select id::text from $schema.record
where id = any(%(jobs)s::uuid[]) and namespace = %(namespace)s order by id for share

-- name: lock_ended
-- Those of these jobs that have ended, locked for this transaction alone.
select id::text from $schema.record
where id = any(%(jobs)s::uuid[]) and namespace = %(namespace)s order by id for update

-- name: unknown_parts
-- Those of these jobs that do not exist.
select p.id::text from unnest(%(jobs)s::uuid[]) as p (id)
where not exists (select 1 from $schema.job j where j.id = p.id and j.namespace = %(namespace)s)
  and not exists (select 1 from $schema.record r where r.id = p.id and r.namespace = %(namespace)s)

-- name: add_edges
-- Adds parts to joins and counts those that have ended. Returns a row for each. The column "attempt" is not
-- in the index of ended jobs, which would be read from its start for each part if the server believes that
-- there are no records yet.
with given as (
  select * from unnest(%(joins)s::text[], %(positions)s::integer[], %(jobs)s::uuid[])
    as e (join_id, position, job)
),
added as (
  insert into $schema.job_edge (namespace, join_id, position, job, state)
  select %(namespace)s, g.join_id, g.position, g.job,
         case when not exists (select 1 from $schema.job b
                               where b.id = g.job and b.namespace = %(namespace)s)
              then (select r.state from $schema.record r
                    where r.id = g.job and r.namespace = %(namespace)s and r.attempt >= 0) end
  from given g
  on conflict do nothing
  returning join_id, state
),
counted as (
  select join_id, count(*) filter (where state is null) as open,
         count(*) filter (where state <> 'succeeded') as failed
  from added group by join_id
),
joined as (
  update $schema.job_join j set open = j.open + c.open, failed = j.failed + c.failed
  from counted c where j.namespace = %(namespace)s and j.id = c.join_id
)
select 1 from added

-- name: add_waits
-- Records which jobs wait for which joins.
insert into $schema.job_wait (namespace, join_id, job, delay, expires_in)
select %(namespace)s, join_id, job, delay, expires_in
from unnest(%(joins)s::text[], %(jobs)s::uuid[], %(delays)s::float8[], %(expiries)s::float8[])
  as w (join_id, job, delay, expires_in)
on conflict do nothing

-- name: release_joins
-- Queues jobs of joins that are complete. Returns how many.
select $schema.release_joins(%(namespace)s, %(joins)s::text[], %(limit)s::integer)

-- name: seal
-- Lets held joins complete. Returns their ids.
with found as materialized (
  select id from $schema.job_join
  where namespace = %(namespace)s and id = any(%(joins)s::text[]) and held is not null
  order by id for update
)
update $schema.job_join j set held = null from found
where j.namespace = %(namespace)s and j.id = found.id
returning j.id

-- name: has_due_joins
-- Whether there is a complete join whose jobs were not all queued or cancelled.
select 1 from $schema.job_join
where namespace = %(namespace)s and held is null and not done and (open = 0 or abandoned) limit 1

-- name: due_joins
-- Complete and abandoned joins whose jobs were not all queued or cancelled, locked, and whether they fire.
select id, fire, abandoned, fire = 'all' or (fire = 'success') = (failed = 0) from $schema.job_join
where namespace = %(namespace)s and held is null and not done and (open = 0 or abandoned)
order by id limit 100 for update skip locked

-- name: blocked_jobs
-- Jobs that a join blocks, locked. Jobs that another transaction has locked are skipped.
select b.id::text from $schema.job_wait w,
  lateral (select b.id from $schema.job b
           where b.id = w.job and b.namespace = %(namespace)s and b.state = 'blocked'
           for update skip locked) b
where w.namespace = %(namespace)s and w.join_id = %(join)s limit %(limit)s

-- name: finish_join
-- Marks a join as done if it blocks no job.
update $schema.job_join j set done = true
where j.namespace = %(namespace)s and j.id = %(join)s
  and not $schema.blocks_jobs(j.namespace, j.id)

-- name: results
-- The parts of a join after a position, in order, with their results.
select e.position, e.job::text, coalesce(r.state::text, j.state::text, e.state, 'cancelled'),
       r.result_type, r.result, r.failure::text, coalesce(r.reason, '')
from $schema.job_edge e
  left join $schema.record r on r.id = e.job and r.namespace = e.namespace
  left join $schema.job j on j.id = e.job and j.namespace = e.namespace
where e.namespace = %(namespace)s and e.join_id = %(join)s and e.position > %(after)s
order by e.position limit %(limit)s

-- name: members
-- The parts of the joins of a group after a place, in order, each with its job or record; on request only
-- those that were counted as failed. It reads no body and no result. The inner limit keeps the sort short
-- if a join has many parts. The group is a range, so that only the index of groups has the wanted order.
select m.join_id, m.position, m.job::text, coalesce(r.state, j.state, m.state, 'cancelled'),
       coalesce(r.task, j.task, ''), coalesce(r.headers, j.headers, '{}')::text, r.result_type,
       r.failure::text, coalesce(r.reason, j.cancel_reason, ''),
       date_part('epoch', coalesce(r.created, j.created)),
       date_part('epoch', coalesce(r.claimed, j.claimed)), date_part('epoch', r.finished),
       coalesce(r.worker, j.worker)
from (
  select o.id as join_id, e.position, e.job, e.state
  from $schema.job_join o,
    lateral (select e.position, e.job, e.state from $schema.job_edge e
             where e.namespace = %(namespace)s and e.join_id = o.id
               and e.position > case when o.id = %(join)s then %(after)s else -1 end
               and (not %(failed)s or e.state <> 'succeeded')
             order by e.position limit %(limit)s) e
  where o.namespace = %(namespace)s and (o.group_id, o.id) >= (%(group)s, %(join)s)
    and o.group_id <= %(group)s and (not %(failed)s or o.failed > 0)
  order by o.group_id, o.id, e.position limit %(limit)s) m
  left join lateral (
    select r.state::text, r.task, r.headers, r.result_type, r.failure, r.reason, r.created, r.claimed,
           r.finished, r.worker
    from $schema.record r where r.id = m.job and r.namespace = %(namespace)s offset 0) r on true
  left join lateral (
    select j.state::text, j.task::text, j.headers, j.cancel_reason, j.created, j.claimed, j.worker
    from $schema.job j where j.id = m.job and j.namespace = %(namespace)s offset 0) j on true
order by m.join_id, m.position

-- name: set_result
-- Stores the result or failure of a job that was ended without a run.
update $schema.record
set result_type = %(result_type)s, result = %(result)s, failure = %(failure)s::jsonb
where id = %(id)s and namespace = %(namespace)s

-- name: dependents
-- The jobs that wait for joins of which these jobs are parts, each with its state. What waited for an
-- abandoned join stays as it is.
select distinct w.job::text, coalesce(
         (select j.state::text from $schema.job j where j.id = w.job and j.namespace = %(namespace)s),
         (select r.state::text from $schema.record r where r.id = w.job and r.namespace = %(namespace)s))
from unnest(%(jobs)s::uuid[]) as given (job),
  lateral (select e.join_id from $schema.job_edge e
           where e.job = given.job and e.namespace = %(namespace)s offset 0) e,
  lateral (select j.id from $schema.job_join j
           where j.namespace = %(namespace)s and j.id = e.join_id and not j.abandoned offset 0) o,
  lateral (select w.job from $schema.job_wait w
           where w.namespace = %(namespace)s and w.join_id = o.id offset 0) w

-- name: lock_joins
-- Locks the joins of which these jobs are parts, and those that they wait for, in the order of their
-- ids. So no part of the latter ends between the check whether a job is blocked, and its insertion.
select id from $schema.job_join j
where j.namespace = %(namespace)s
  and j.id in (select e.join_id from $schema.job_edge e
               where e.job = any(%(jobs)s::uuid[]) and e.namespace = %(namespace)s
               union all
               select w.join_id from $schema.job_wait w
               where w.job = any(%(jobs)s::uuid[]) and w.namespace = %(namespace)s)
order by id for update

-- name: uncount
-- Counts these jobs as not ended. Returns their joins.
update $schema.job_edge set state = null
where job = any(%(jobs)s::uuid[]) and namespace = %(namespace)s
returning join_id

-- name: count_ended
-- Counts parts that had ended before they became parts. Returns their joins.
update $schema.job_edge e set state = r.state from $schema.record r
where e.job = any(%(jobs)s::uuid[]) and e.namespace = %(namespace)s and e.state is null
  and r.id = e.job and r.namespace = e.namespace
returning e.join_id

-- name: recount
-- Counts the parts of these joins again.
update $schema.job_join j
set open = (select count(*) from $schema.job_edge e
            where e.namespace = j.namespace and e.join_id = j.id and e.state is null),
    failed = (select count(*) from $schema.job_edge e
              where e.namespace = j.namespace and e.join_id = j.id and e.state <> 'succeeded'),
    done = false
where j.namespace = %(namespace)s and j.id = any(%(joins)s::text[]) and not j.abandoned

-- name: block_again
-- Blocks jobs that do not run and whose join is not complete, and frees their slots. The seconds of
-- their delay and expiry count again from when they are queued again.
update $schema.job b
set state = 'blocked', gate = null, slots = null,
    not_before = case when w.delay is null then b.not_before end,
    expires = case when w.expires_in is null then b.expires end
from $schema.job_wait w join $schema.job_join j on j.namespace = w.namespace and j.id = w.join_id
where b.id = any(%(jobs)s::uuid[]) and b.namespace = %(namespace)s
  and b.state not in ('running', 'blocked')
  and w.job = b.id and w.namespace = b.namespace and not j.done and (j.open > 0 or j.held is not null)

-- name: lock_group
-- Locks the joins of a group, in the order of their ids, so that nothing is added to them.
select id from $schema.job_join
where namespace = %(namespace)s and group_id = %(group)s order by id for update

-- name: is_group_live
-- Whether a job of a group has not ended.
select exists (select 1 from $schema.job_join j
               join $schema.job_edge e on e.namespace = j.namespace and e.join_id = j.id
               join $schema.job b on b.id = e.job and b.namespace = e.namespace
               where j.namespace = %(namespace)s and j.group_id = %(group)s)
    or exists (select 1 from $schema.job_join j
               join $schema.job_wait w on w.namespace = j.namespace and w.join_id = j.id
               join $schema.job b on b.id = w.job and b.namespace = w.namespace
               where j.namespace = %(namespace)s and j.group_id = %(group)s)

-- name: drop_group
-- Deletes the joins of a group.
with gone as (
  delete from $schema.job_join where namespace = %(namespace)s and group_id = %(group)s returning id
),
edges as (
  delete from $schema.job_edge where namespace = %(namespace)s and join_id in (select id from gone)
)
delete from $schema.job_wait where namespace = %(namespace)s and join_id in (select id from gone)

-- name: unsealed_joins
-- Joins that have been held for too long, locked.
select id from $schema.job_join
where namespace = %(namespace)s and held <= statement_timestamp() - make_interval(secs => %(age)s)
order by held limit %(limit)s for update skip locked

-- name: abandon_join
-- Marks a join as abandoned: it never fires.
update $schema.job_join set abandoned = true, held = null
where namespace = %(namespace)s and id = %(join)s

-- name: lock_lease
-- The job if it is under this lease, locked: why it is to be cancelled, or null.
select cancel_reason from $schema.job
where id = %(id)s and owner = %(owner)s and fence = %(fence)s
for update

-- name: move_edges
-- Lets another job take the place of a job in its joins.
update $schema.job_edge set job = %(place)s
where job = %(id)s and namespace = %(namespace)s and state is null
returning join_id
