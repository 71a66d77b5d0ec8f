-- name: declare
-- Stores a rule as the code declares it. No row changes if it is stored already.
insert into rule (namespace, name, declared) values (:namespace, :rule, :declared)
on conflict do update set declared = excluded.declared where declared <> excluded.declared

-- name: lift
-- Opens the gates of a rule that the code no longer declares.
update rule set declared = :declared
where namespace = :namespace and name = :rule and declared <> :declared

-- name: check_gates
-- All gates of a rule are checked by the next claim.
update waiting_list set next_check = 0
where namespace = :namespace and (key = :rule or (key >= :first and key < :last))

-- name: reset_paces
-- A rate that has changed starts anew in all gates of its rule.
update gate set paces = '[]'
where namespace = :namespace and (key = :rule or (key >= :first and key < :last))

-- name: gates
-- Gates with the number of held slots and waiting jobs: those of rules without tokens, and those in use.
with used as (
  select name as key from rule where namespace = :namespace and (:rule is null or name = :rule)
  union select key from gate where namespace = :namespace and held > 0
  union select key from waiting_list where namespace = :namespace
)
select used.key, r.declared,
       (select capacity from limit_override o
        where o.namespace = :namespace and o.rule = r.name and o.until > :now),
       coalesce((select held from gate g where g.namespace = :namespace and g.key = used.key), 0),
       (select count(*) from job where namespace = :namespace and state = 'waiting' and gate = used.key)
from used join rule r
  on r.namespace = :namespace
 and r.name = iif(instr(used.key, '#'), substr(used.key, 1, instr(used.key, '#') - 1), used.key)
where :rule is null or r.name = :rule
order by used.key limit :limit

-- name: add_member
-- Adds a member for an operator, even if it was removed before, and sets its data.
insert into member (namespace, pool, name, data) values (:namespace, :pool, :name, :data)
on conflict do update set data = excluded.data, coded = 0,
  condition = iif(condition in ('leaving', 'gone'), 'ready', condition)

-- name: add_declared_member
-- Adds a member that the code declares. A member that an operator removed stays removed.
insert into member (namespace, pool, name, data, coded) values (:namespace, :pool, :name, :data, 1)
on conflict do update set data = excluded.data,
  coded = iif(condition in ('leaving', 'gone') and coded <> 2, coded, 1),
  condition = iif(coded = 2, 'ready', condition)

-- name: remove_undeclared
-- Removes members that the code no longer declares. With coded = 2 the code may add them again.
update member set coded = 2, condition = iif(job is null, 'gone', 'leaving')
where namespace = :namespace and pool = :pool and coded = 1
  and name not in (select value from json_each(:names))

-- name: remove_members
-- Removes members, each as soon as no job holds it. Returns their names.
update member set condition = iif(job is null, 'gone', 'leaving'), coded = 0
where namespace = :namespace and pool = :pool and name in (select value from json_each(:name))
  and condition not in ('leaving', 'gone')
returning name

-- name: set_condition
-- Sets whether members may be given to jobs. Returns their names.
update member set condition = :condition, failures = 0, check_at = null
where namespace = :namespace and pool = :pool and name in (select value from json_each(:name))
  and condition not in ('leaving', 'gone')
returning name

-- name: members
-- Members that are not removed yet.
select pool, name, data, condition, job, fence, failures from member
where namespace = :namespace and (:pool is null or pool = :pool) and condition <> 'gone'
order by pool, name

-- name: quarantine
-- Quarantines a member that failed its check.
update member set condition = 'quarantined', failures = failures + 1, check_at = :now + :delay
where namespace = :namespace and pool = :pool and name = :name
  and condition in ('ready', 'quarantined')

-- name: claim_due_checks
-- Claims the members whose check is due, so that no other worker checks them now.
update member set check_at = :now + :delay
where namespace = :namespace and pool = :pool and condition = 'quarantined' and check_at <= :now
returning pool, name, data, condition, job, fence, failures
