-- name: deployment
-- The one under way, or the last there was.
select plan, state, epoch, since, until, went, ended, outcome, :now from deployment
where namespace = :namespace

-- name: begin
-- A deployment takes the only place there is; who asks has looked before, in the same transaction.
insert or replace into deployment (namespace, id, plan, state, epoch, since, until)
values (:namespace, :id, :plan, 'waiting', :epoch, :now, :now + :lease)

-- name: hold
-- A pause of a deployment, beside operators' own.
insert into pause (namespace, scope, name, holder, since, reason)
values (:namespace, :scope, :name, 'deploy', :now, :reason) on conflict do nothing

-- name: let_go
-- All pauses of a deployment, and no others.
delete from pause where namespace = :namespace and holder = 'deploy'

-- name: renew
-- It waits longer.
update deployment set until = :now + :lease
where namespace = :namespace and id = :id and state = 'waiting'

-- name: go
-- It lapses no more.
update deployment set state = 'go', until = null, went = :now
where namespace = :namespace and id = :id and state = 'waiting'

-- name: end
-- It is over.
update deployment set state = :state, until = null, ended = :now, outcome = :outcome
where namespace = :namespace and id = :id and state in ('waiting', 'go')

-- name: next_epoch
-- One more change of control state.
insert into control (namespace, epoch) values (:namespace, 1)
on conflict (namespace) do update set epoch = epoch + 1 returning epoch

-- name: runs
-- What these incarnations hold, oldest first.
select id, task, queue, owner, :now - claimed from job
where state = 'running' and owner in (select value from json_each(:owners))
  and namespace = :namespace
order by claimed, seq

-- name: waiting
-- How many jobs of each queue and task live and do not run.
select queue, task, count(*) from job
where namespace = :namespace and state <> 'running'
group by queue, task

-- name: run_times
-- Tasks that ran too long: all their runs are counted and put in order here, few rows leave.
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
       json_group_array(json_array(place, id)) filter (where place > runs - :worst and took > :longer)
from placed group by task order by max(took) desc, task
