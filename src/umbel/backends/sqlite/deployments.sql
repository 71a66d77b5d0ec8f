-- name: deployment
-- The current deployment, or the last one.
select plan, state, epoch, since, until, went, ended, outcome, :now from deployment
where namespace = :namespace

-- name: begin
-- Starts a deployment in place of the last one. The caller has checked that one in the same
-- transaction.
insert or replace into deployment (namespace, id, plan, state, epoch, since, until)
values (:namespace, :id, :plan, 'waiting', :epoch, :now, :now + :lease)

-- name: add_pauses
-- Adds the pauses of a deployment, beside the operators' own.
insert into pause (namespace, scope, name, holder, since, reason)
select :namespace, s.value, n.value, 'deploy', :now, :reason
from json_each(:scope) s join json_each(:name) n on n.key = s.key
where true on conflict do nothing

-- name: remove_pauses
-- Removes all pauses of a deployment, and no others.
delete from pause where namespace = :namespace and holder = 'deploy'

-- name: renew
-- Renews the lease of a waiting deployment.
update deployment set until = :now + :lease
where namespace = :namespace and id = :id and state = 'waiting'

-- name: go
-- Lets the deployment go, so that it does not lapse any more.
update deployment set state = 'go', until = null, went = :now
where namespace = :namespace and id = :id and state = 'waiting'

-- name: end
-- Ends the deployment. No row if it is not in progress.
update deployment set state = :state, until = null, ended = :now, outcome = :outcome
where namespace = :namespace and id = :id and state in ('waiting', 'go')
returning 1

-- name: runs
-- The running jobs of these incarnations, oldest first.
select id, task, queue, owner, :now - claimed from job
where state = 'running' and owner in (select value from json_each(:owners))
  and namespace = :namespace
order by claimed, seq

-- name: waiting
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
