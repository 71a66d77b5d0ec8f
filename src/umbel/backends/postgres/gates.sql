-- name: declare
-- What the code says of rules; one that says what it said before is left alone. In order, as
-- everybody who changes several.
insert into $schema.rule as r (namespace, name, declared)
select %(namespace)s, d ->> 'name', d from jsonb_array_elements(%(declared)s::jsonb) d order by 2
on conflict (namespace, name) do update set declared = excluded.declared
where r.declared <> excluded.declared

-- name: lift
-- The code has no such rules any more.
with known as materialized (
  select name from $schema.rule
  where namespace = %(namespace)s and name = any(%(rule)s::text[]) order by name for update
)
update $schema.rule r set declared = jsonb_build_object('name', r.name, 'kind', 'open')
from known where r.namespace = %(namespace)s and r.name = known.name

-- name: impose
-- What an operator says of a limit.
update $schema.rule set imposed = %(capacity)s
where namespace = %(namespace)s and name = %(rule)s and not declared ? 'kind'
returning 1

-- name: fold
-- What has been set free until now is free.
select $schema.fold_knocks(%(namespace)s)

-- name: gates
-- Gates with what is held and how many wait: those of rules without tokens, and those in use.
with used as (
  select name as key from $schema.rule
  where namespace = %(namespace)s and (%(rule)s::text is null or name = %(rule)s)
  union select key from $schema.gate where namespace = %(namespace)s and held > 0
  union select key from $schema.line where namespace = %(namespace)s
)
select u.key, r.declared::text, r.imposed,
       coalesce((select held from $schema.gate g
                 where g.namespace = %(namespace)s and g.key = u.key), 0),
       (select count(*) from $schema.job j
        where j.namespace = %(namespace)s and j.state = 'waiting' and j.line = u.key)
from used u
join $schema.rule r on r.namespace = %(namespace)s and r.name = split_part(u.key, '#', 1)
where %(rule)s::text is null or r.name = %(rule)s
order by u.key limit %(limit)s

-- name: enrol
-- An operator adds members, also those that were removed; they get their data. Here and below, the
-- lock of the gates comes first: who lets jobs pass must not wait for a member.
insert into $schema.member as m (namespace, pool, name, data)
select %(namespace)s, %(pool)s, d.key, d.value
from $schema.lock_gates(%(namespace)s) locked, jsonb_each(%(members)s::jsonb) d
on conflict (namespace, pool, name) do update
set data = excluded.data, coded = 0,
    condition = case when m.condition in ('leaving', 'gone') then 'ready' else m.condition end

-- name: enrol_coded
-- All members that the code names. One that was removed stays away; others that the code named
-- before leave. Coded as two: the code may bring them back.
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

-- name: dismiss
-- Members are gone when nobody holds them any more.
with locked as materialized (select $schema.lock_gates(%(namespace)s))
update $schema.member m
set condition = case when m.job is null then 'gone' else 'leaving' end, coded = 0
from locked
where m.namespace = %(namespace)s and m.pool = %(pool)s and m.name = any(%(name)s::text[])
  and m.condition not in ('leaving', 'gone')
returning m.name

-- name: turn
-- Members are handed out, or not.
with locked as materialized (select $schema.lock_gates(%(namespace)s))
update $schema.member m set condition = %(condition)s, failures = 0, check_at = null
from locked
where m.namespace = %(namespace)s and m.pool = %(pool)s and m.name = any(%(name)s::text[])
  and m.condition not in ('leaving', 'gone')
returning m.name

-- name: members
-- Members that are there, or on their way out.
select pool, name, data::text, condition, job::text, fence, failures from $schema.member
where namespace = %(namespace)s and (%(pool)s::text is null or pool = %(pool)s)
  and condition <> 'gone'
order by pool, name

-- name: suspect
-- A member failed its check.
with locked as materialized (select $schema.lock_gates(%(namespace)s))
update $schema.member m
set condition = 'quarantined', failures = m.failures + 1,
    check_at = statement_timestamp() + make_interval(secs => %(delay)s)
from locked
where m.namespace = %(namespace)s and m.pool = %(pool)s and m.name = %(name)s
  and m.condition in ('ready', 'quarantined')

-- name: suspects
-- Members that are to be checked now, and not by others.
with locked as materialized (select $schema.lock_gates(%(namespace)s))
update $schema.member m set check_at = statement_timestamp() + make_interval(secs => %(delay)s)
from locked
where m.namespace = %(namespace)s and m.pool = %(pool)s and m.condition = 'quarantined'
  and m.check_at <= statement_timestamp()
returning m.pool, m.name, m.data::text, m.condition, m.job::text, m.fence, m.failures
