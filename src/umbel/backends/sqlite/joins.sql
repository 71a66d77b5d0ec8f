-- name: add_joins
-- Adds joins. A join that exists is not changed. Returns the ids of those that were added.
insert into job_join (namespace, id, group_id, fire, held)
select :namespace, i.value, g.value, f.value, iif(h.value, :now, null)
from json_each(:ids) i join json_each(:groups) g on g.key = i.key
  join json_each(:fires) f on f.key = i.key join json_each(:held) h on h.key = i.key
where true
on conflict do nothing
returning id

-- name: open_joins
-- Those of these joins to which parts and waiting jobs may be added.
select id from job_join
where namespace = :namespace and id in (select value from json_each(:joins)) and not done
  and (held is not null or id in (select value from json_each(:new)))

-- name: unknown_parts
-- Those of these jobs that do not exist.
select p.value from json_each(:jobs) p
where not exists (select 1 from job where id = p.value and namespace = :namespace)
  and not exists (select 1 from record where id = p.value and namespace = :namespace)

-- name: add_edges
-- Adds parts to joins.
insert into job_edge (namespace, join_id, position, job, state)
select :namespace, j.value, p.value, b.value,
       (select state from record where id = b.value and namespace = :namespace)
from json_each(:joins) j join json_each(:positions) p on p.key = j.key
  join json_each(:jobs) b on b.key = j.key
where true
on conflict do nothing
returning 1

-- name: add_waits
-- Records which jobs wait for which joins.
insert into job_wait (namespace, join_id, job, delay, expires_in)
select :namespace, j.value, b.value, d.value, e.value
from json_each(:joins) j join json_each(:jobs) b on b.key = j.key
  join json_each(:delays) d on d.key = j.key join json_each(:expiries) e on e.key = j.key
where true
on conflict do nothing

-- name: release_joins
-- Queues jobs of joins that are complete and fire. Returns their ids.
update job
set state = case when coalesce(not_before, :now + w.delay) > :now then 'scheduled'
                 when gates is not null then 'waiting' else 'queued' end,
    gate = case when coalesce(not_before, :now + w.delay) > :now then null
                else json_extract(gates, '$[0]') end,
    not_before = coalesce(not_before, :now + w.delay), expires = coalesce(expires, :now + w.expires_in)
from (
  select job_wait.job, job_wait.delay, job_wait.expires_in
  from job_join join job_wait on job_wait.namespace = job_join.namespace and job_wait.join_id = job_join.id
    join job blocked on blocked.id = job_wait.job and blocked.namespace = job_wait.namespace
  where job_join.namespace = :namespace and job_join.id in (select value from json_each(:joins))
    and job_join.open = 0 and job_join.held is null and not job_join.done
    and not job_join.abandoned and (job_join.fire = 'all' or (job_join.fire = 'success') = (job_join.failed = 0))
    and blocked.state = 'blocked'
  limit :limit) w
where job.id = w.job and job.namespace = :namespace
returning id

-- name: finish_released
-- Marks those of these joins as done that are complete and block no job.
update job_join set done = 1
where namespace = :namespace and id in (select value from json_each(:joins))
  and open = 0 and held is null and not done
  and not exists (select 1 from job_wait w join job b on b.id = w.job and b.namespace = w.namespace
                  where w.namespace = job_join.namespace and w.join_id = job_join.id
                    and b.state = 'blocked')

-- name: seal
-- Lets held joins complete. Returns their ids.
update job_join set held = null
where namespace = :namespace and id in (select value from json_each(:joins)) and held is not null
returning id

-- name: has_due_joins
-- Whether there is a complete join whose jobs were not all queued or cancelled.
select 1 from job_join
where namespace = :namespace and held is null and not done and (open = 0 or abandoned) limit 1

-- name: due_joins
-- Complete and abandoned joins whose jobs were not all queued or cancelled, and whether they fire.
select id, fire, abandoned, fire = 'all' or (fire = 'success') = (failed = 0) from job_join
where namespace = :namespace and held is null and not done and (open = 0 or abandoned)
order by id limit 100

-- name: blocked_jobs
-- Jobs that a join blocks.
select b.id from job_wait w join job b on b.id = w.job and b.namespace = w.namespace
where w.namespace = :namespace and w.join_id = :join and b.state = 'blocked'
order by b.id limit :limit

-- name: finish_join
-- Marks a join as done if it blocks no job.
update job_join set done = 1
where namespace = :namespace and id = :join
  and not exists (select 1 from job_wait w join job b on b.id = w.job and b.namespace = w.namespace
                  where w.namespace = job_join.namespace and w.join_id = job_join.id
                    and b.state = 'blocked')

-- name: results
-- The parts of a join after a position, in order, with their results.
select e.position, e.job, coalesce(r.state, j.state, e.state, 'cancelled'),
       r.result_type, r.result, r.failure, coalesce(r.reason, '')
from job_edge e left join record r on r.id = e.job and r.namespace = e.namespace
  left join job j on j.id = e.job and j.namespace = e.namespace
where e.namespace = :namespace and e.join_id = :join and e.position > :after
order by e.position limit :limit

-- name: members
-- The parts of the joins of a group after a place, in order, each with its job or record; on request only
-- those that were counted as failed. It reads no body and no result. Without "+o.id", SQLite would look for
-- all parts from the first join on, once for each join, and sort.
select o.id, e.position, e.job, coalesce(r.state, j.state, e.state, 'cancelled'),
       coalesce(r.task, j.task, ''), coalesce(r.headers, j.headers, '{}'), r.result_type, r.failure,
       coalesce(r.reason, j.cancel_reason, ''), coalesce(r.created, j.created),
       coalesce(r.claimed, j.claimed), r.finished, coalesce(r.worker, j.worker)
from job_join o indexed by job_join_group
  cross join job_edge e on e.namespace = o.namespace and e.join_id = +o.id
    and e.position > iif(o.id = :join, :after, -1)
  left join record r on r.id = e.job and r.namespace = e.namespace
  left join job j on j.id = e.job and j.namespace = e.namespace
where o.namespace = :namespace and o.group_id = :group and o.id >= :join
  and (not :failed or (o.failed > 0 and e.state <> 'succeeded'))
order by o.id, e.position limit :limit

-- name: set_result
-- Stores the result or failure of a job that was ended without a run.
update record set result_type = :result_type, result = :result, failure = :failure
where id = :id and namespace = :namespace

-- name: dependents
-- The jobs that wait for joins of which these jobs are parts, each with its state. What waited for an
-- abandoned join stays as it is. In this order of the tables, a level of a graph costs what it has.
select distinct w.job, coalesce(j.state, r.state)
from json_each(:jobs) given
  cross join job_edge e on e.job = given.value and e.namespace = :namespace
  cross join job_join o on o.namespace = e.namespace and o.id = e.join_id and not o.abandoned
  cross join job_wait w on w.namespace = e.namespace and w.join_id = e.join_id
  left join job j on j.id = w.job and j.namespace = w.namespace
  left join record r on r.id = w.job and r.namespace = w.namespace

-- name: lock_joins
-- The joins of which these jobs are parts.
select id from job_join
where namespace = :namespace
  and id in (select join_id from job_edge
             where job in (select value from json_each(:jobs)) and namespace = :namespace)

-- name: uncount
-- Counts these jobs as not ended. Returns their joins.
update job_edge set state = null
where job in (select value from json_each(:jobs)) and namespace = :namespace
returning join_id

-- name: count_ended
-- Counts parts that had ended before they became parts. Returns their joins.
update job_edge set state = (select r.state from record r
                             where r.id = job_edge.job and r.namespace = job_edge.namespace)
where job in (select value from json_each(:jobs)) and namespace = :namespace and state is null
returning join_id

-- name: recount
-- Counts the parts of these joins again.
update job_join
set open = (select count(*) from job_edge e
            where e.namespace = job_join.namespace and e.join_id = job_join.id and e.state is null),
    failed = (select count(*) from job_edge e
              where e.namespace = job_join.namespace and e.join_id = job_join.id
                and e.state <> 'succeeded'),
    done = 0
where namespace = :namespace and id in (select value from json_each(:joins)) and not abandoned

-- name: block_again
-- Blocks jobs that do not run and whose join is not complete, and frees their slots. The seconds of
-- their delay and expiry count again from when they are queued again.
update job
set state = 'blocked', gate = null, slots = null,
    not_before = iif(w.delay is null, not_before, null),
    expires = iif(w.expires_in is null, expires, null)
from job_wait w join job_join j on j.namespace = w.namespace and j.id = w.join_id
where job.id in (select value from json_each(:jobs)) and job.namespace = :namespace
  and state not in ('running', 'blocked')
  and w.job = job.id and w.namespace = job.namespace and not j.done and (j.open > 0 or j.held is not null)

-- name: is_group_live
-- Whether a job of a group has not ended.
select exists (select 1 from job_join j
               join job_edge e on e.namespace = j.namespace and e.join_id = j.id
               join job b on b.id = e.job and b.namespace = e.namespace
               where j.namespace = :namespace and j.group_id = :group)
    or exists (select 1 from job_join j
               join job_wait w on w.namespace = j.namespace and w.join_id = j.id
               join job b on b.id = w.job and b.namespace = w.namespace
               where j.namespace = :namespace and j.group_id = :group)

-- name: drop_group
-- Deletes the joins of a group. Triggers delete their parts and waiting jobs.
delete from job_join where namespace = :namespace and group_id = :group

-- name: unsealed_joins
-- Joins that have been held for too long.
select id from job_join where namespace = :namespace and held <= :now - :age order by held limit :limit

-- name: abandon_join
-- Marks a join as abandoned: it never fires.
update job_join set abandoned = 1, held = null where namespace = :namespace and id = :join

-- name: lock_lease
-- The job if it is under this lease: why it is to be cancelled, or null.
select cancel_reason from job where id = :id and owner = :owner and fence = :fence

-- name: move_edges
-- Lets another job take the place of a job in its joins.
update job_edge set job = :place
where job = :id and namespace = :namespace and state is null
returning join_id
