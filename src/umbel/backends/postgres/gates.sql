-- name: declare
-- Stores rules as the code declares them. A rule that is stored already is not changed. In order of
-- name, as all statements that change several rules. Returns the rules that were changed.
insert into $schema.rule as r (namespace, name, declared)
select %(namespace)s, d ->> 'name', d from jsonb_array_elements(%(declared)s::jsonb) d order by 2
on conflict (namespace, name) do update set declared = excluded.declared
where r.declared <> excluded.declared
returning r.name, r.declared ->> 'kind'

-- name: reset_paces
-- Rates that have changed start anew in all gates of their rules. The gates are checked once more: a
-- claim may have checked them by their former paces since the rules were changed.
with locked as materialized (select $schema.lock_gates(%(namespace)s)),
reset as (
  update $schema.gate g set paces = '{}'
  from locked, unnest(%(rule)s::text[]) changed (name)
  where g.namespace = %(namespace)s
    and (g.key = changed.name or (g.key > changed.name || '#' and g.key < changed.name || '$'))
),
opened as (
  insert into $schema.gate_event (namespace, key)
  select %(namespace)s, name from unnest(%(rule)s::text[]) changed (name)
)
select pg_notify('$channel', 'g:' || %(namespace)s)

-- name: lift
-- Opens the gates of rules that the code no longer declares.
with known as materialized (
  select name from $schema.rule
  where namespace = %(namespace)s and name = any(%(rule)s::text[]) order by name for update
)
update $schema.rule r set declared = jsonb_build_object('name', r.name, 'kind', 'open')
from known where r.namespace = %(namespace)s and r.name = known.name

-- name: fold
-- Applies the rows of gate_event: freed slots are free.
select $schema.apply_gate_events(%(namespace)s)

-- name: gates
-- Gates with the number of held slots and waiting jobs: those of rules without tokens, and those in use.
with used as (
  select name as key from $schema.rule
  where namespace = %(namespace)s and (%(rule)s::text is null or name = %(rule)s)
  union select key from $schema.gate where namespace = %(namespace)s and held > 0
  union select key from $schema.waiting_list where namespace = %(namespace)s
)
select u.key, r.declared::text,
       (select capacity from $schema.limit_override o
        where o.namespace = %(namespace)s and o.rule = r.name),
       coalesce((select held from $schema.gate g
                 where g.namespace = %(namespace)s and g.key = u.key), 0),
       (select count(*) from $schema.job j
        where j.namespace = %(namespace)s and j.state = 'waiting' and j.gate = u.key)
from used u
join $schema.rule r on r.namespace = %(namespace)s and r.name = split_part(u.key, '#', 1)
where %(rule)s::text is null or r.name = %(rule)s
order by u.key limit %(limit)s

-- name: add_members
-- Adds members for an operator, even if they were removed before, and sets their data. Here and below,
-- the lock of the gates comes first: a transaction that lets jobs pass must not wait for a member.
insert into $schema.member as m (namespace, pool, name, data)
select %(namespace)s, %(pool)s, d.key, d.value
from $schema.lock_gates(%(namespace)s) locked, jsonb_each(%(members)s::jsonb) d
on conflict (namespace, pool, name) do update
set data = excluded.data, coded = 0,
    condition = case when m.condition in ('leaving', 'gone') then 'ready' else m.condition end

-- name: set_members
-- Adds all members that the code declares, and removes those that it no longer declares. A member that
-- an operator removed stays removed. With coded = 2 the code may add a member again.
with locked as materialized (select $schema.lock_gates(%(namespace)s)),
named as (
  insert into $schema.member as m (namespace, pool, name, data, coded)
  select %(namespace)s, %(pool)s, d.key, d.value, 1
  from locked, jsonb_each(%(members)s::jsonb) d
  on conflict (namespace, pool, name) do update
  set data = excluded.data,
      coded = case when m.coded <> 2 and m.condition in ('leaving', 'gone') then m.coded else 1 end,
      condition = case when m.coded = 2 then 'ready' else m.condition end
)
update $schema.member m
set coded = 2, condition = case when m.job is null then 'gone' else 'leaving' end
from locked
where m.namespace = %(namespace)s and m.pool = %(pool)s and m.coded = 1
  and not %(members)s::jsonb ? m.name

-- name: remove_members
-- Removes members, each as soon as no job holds it. Returns their names.
with locked as materialized (select $schema.lock_gates(%(namespace)s))
update $schema.member m
set condition = case when m.job is null then 'gone' else 'leaving' end, coded = 0
from locked
where m.namespace = %(namespace)s and m.pool = %(pool)s and m.name = any(%(name)s::text[])
  and m.condition not in ('leaving', 'gone')
returning m.name

-- name: set_condition
-- Sets whether members may be given to jobs. Returns their names.
with locked as materialized (select $schema.lock_gates(%(namespace)s))
update $schema.member m set condition = %(condition)s, failures = 0, check_at = null
from locked
where m.namespace = %(namespace)s and m.pool = %(pool)s and m.name = any(%(name)s::text[])
  and m.condition not in ('leaving', 'gone')
returning m.name

-- name: members
-- Members that are not removed yet.
select pool, name, data::text, condition, job::text, fence, failures from $schema.member
where namespace = %(namespace)s and (%(pool)s::text is null or pool = %(pool)s)
  and condition <> 'gone'
order by pool, name

-- name: quarantine
-- Quarantines a member that failed its check.
with locked as materialized (select $schema.lock_gates(%(namespace)s))
update $schema.member m
set condition = 'quarantined', failures = m.failures + 1,
    check_at = statement_timestamp() + make_interval(secs => %(delay)s)
from locked
where m.namespace = %(namespace)s and m.pool = %(pool)s and m.name = %(name)s
  and m.condition in ('ready', 'quarantined')

-- name: claim_due_checks
-- Claims the members whose check is due, so that no other worker checks them now.
with locked as materialized (select $schema.lock_gates(%(namespace)s))
update $schema.member m set check_at = statement_timestamp() + make_interval(secs => %(delay)s)
from locked
where m.namespace = %(namespace)s and m.pool = %(pool)s and m.condition = 'quarantined'
  and m.check_at <= statement_timestamp()
returning m.pool, m.name, m.data::text, m.condition, m.job::text, m.fence, m.failures
