-- name: lock
-- Lets only one transaction at a time change the deployments of a namespace. Every change updates
-- the row of control.
insert into $schema.control (namespace, epoch) values (%(namespace)s, 0)
on conflict (namespace) do update set epoch = control.epoch

-- name: deployment
-- The current deployment, or the last one.
select plan::text, state, epoch, date_part('epoch', since), date_part('epoch', until),
       date_part('epoch', went), date_part('epoch', ended), outcome,
       date_part('epoch', statement_timestamp())
from $schema.deployment where namespace = %(namespace)s

-- name: begin
-- Starts a deployment in place of the last one. The caller has checked that one under the lock.
insert into $schema.deployment (namespace, id, plan, state, epoch, until)
values (%(namespace)s, %(id)s, %(plan)s::jsonb, 'waiting', %(epoch)s,
        statement_timestamp() + make_interval(secs => %(lease)s))
on conflict (namespace) do update
set id = excluded.id, plan = excluded.plan, state = excluded.state, epoch = excluded.epoch,
    since = excluded.since, until = excluded.until, went = null, ended = null, outcome = ''

-- name: add_pauses
-- Adds the pauses of a deployment, beside the operators' own.
insert into $schema.pause (namespace, scope, name, holder, reason)
select %(namespace)s, scope, name, 'deploy', %(reason)s
from unnest(%(scope)s::text[], %(name)s::text[]) as p (scope, name)
on conflict do nothing

-- name: remove_pauses
-- Removes all pauses of a deployment, and no others.
delete from $schema.pause where namespace = %(namespace)s and holder = 'deploy'

-- name: renew
-- Renews the lease of a waiting deployment.
update $schema.deployment
set until = statement_timestamp() + make_interval(secs => %(lease)s)
where namespace = %(namespace)s and id = %(id)s and state = 'waiting'

-- name: go
-- Lets the deployment go, so that it does not lapse any more.
update $schema.deployment set state = 'go', until = null, went = statement_timestamp()
where namespace = %(namespace)s and id = %(id)s and state = 'waiting'

-- name: end
-- Ends the deployment. No row if it is not in progress.
update $schema.deployment
set state = %(state)s, until = null, ended = statement_timestamp(), outcome = %(outcome)s
where namespace = %(namespace)s and id = %(id)s and state in ('waiting', 'go')
returning 1

-- name: runs
-- The running jobs of these incarnations, oldest first.
select id::text, task, queue, owner,
       date_part('epoch', statement_timestamp()) - date_part('epoch', claimed)
from $schema.job
where state = 'running' and owner = any(%(owners)s::text[]) and namespace = %(namespace)s
order by claimed, seq

-- name: waiting
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
