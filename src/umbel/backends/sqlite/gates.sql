-- name: declare
-- What the code says of a rule. No row when it said so before.
insert into rule (namespace, name, declared) values (:namespace, :rule, :declared)
on conflict do update set declared = excluded.declared where declared <> excluded.declared

-- name: lift
-- The code has no such rule any more.
update rule set declared = :declared
where namespace = :namespace and name = :rule and declared <> :declared

-- name: impose
-- What an operator says of a limit.
update rule set imposed = :capacity
where namespace = :namespace and name = :rule and json_extract(declared, '$.kind') is null

-- name: look
-- At all gates of a rule, somebody may pass.
update line set look = 0
where namespace = :namespace and (key = :rule or (key >= :first and key < :last))

-- name: rules
-- All rules.
select name, declared, imposed from rule where namespace = :namespace

-- name: gates
-- Gates with what is held and how many wait: those of rules without tokens, and those in use.
with used as (
  select name as key from rule where namespace = :namespace and (:rule is null or name = :rule)
  union select key from gate where namespace = :namespace and held > 0
  union select key from line where namespace = :namespace
)
select key, coalesce((select held from gate g where g.namespace = :namespace and g.key = used.key), 0),
       (select count(*) from job where namespace = :namespace and state = 'waiting' and line = key)
from used
where exists (select 1 from rule where namespace = :namespace
              and name = iif(instr(key, :token), substr(key, 1, instr(key, :token) - 1), key)
              and (:rule is null or name = :rule))
order by key limit :limit

-- name: enrol
-- An operator adds a member, also one that was removed; it gets its data.
insert into member (namespace, pool, name, data) values (:namespace, :pool, :name, :data)
on conflict do update set data = excluded.data, coded = 0,
  condition = iif(condition in ('leaving', 'gone'), 'ready', condition)

-- name: enrol_coded
-- The code names a member; one that was removed stays away.
insert into member (namespace, pool, name, data, coded) values (:namespace, :pool, :name, :data, 1)
on conflict do update set data = excluded.data,
  coded = iif(condition in ('leaving', 'gone') and coded <> 2, coded, 1),
  condition = iif(coded = 2, 'ready', condition)

-- name: drop
-- Members that the code named before, and does not any more. Two: the code may bring them back.
update member set coded = 2, condition = iif(job is null, 'gone', 'leaving')
where namespace = :namespace and pool = :pool and coded = 1
  and name not in (select value from json_each(:names))

-- name: dismiss
-- A member is gone when nobody holds it any more.
update member set condition = iif(job is null, 'gone', 'leaving'), coded = 0
where namespace = :namespace and pool = :pool and name = :name
  and condition not in ('leaving', 'gone')

-- name: turn
-- A member is handed out, or not.
update member set condition = :condition, failures = 0, check_at = null
where namespace = :namespace and pool = :pool and name = :name
  and condition not in ('leaving', 'gone')

-- name: members
-- Members that are there, or on their way out.
select pool, name, data, condition, job, fence, failures from member
where namespace = :namespace and (:pool is null or pool = :pool) and condition <> 'gone'
order by pool, name

-- name: suspect
-- A member failed its check.
update member set condition = 'quarantined', failures = failures + 1, check_at = :check_at
where namespace = :namespace and pool = :pool and name = :name
  and condition in ('ready', 'quarantined')

-- name: suspects
-- Members that are to be checked now, and not by others.
update member set check_at = :later
where namespace = :namespace and pool = :pool and condition = 'quarantined' and check_at <= :now
returning pool, name, data, condition, job, fence, failures
