-- name: keep
-- Adds steps whose lease is held, unless there is one of the number. Returns the places of steps
-- whose lease is not held. An owner is a worker of one namespace, so the lease needs none. The lock
-- on the job lasts until the end of the transaction, so no other worker gets it before.
with sent as (
  select * from unnest(%(id)s::uuid[], %(owner)s::text[], %(fence)s::bigint[], %(number)s::integer[],
                       %(name)s::text[], %(content_type)s::text[], %(result)s::bytea[],
                       %(started)s::float8[], %(finished)s::float8[])
    with ordinality as s (id, owner, fence, number, name, content_type, result, started, finished, place)
),
held as materialized (
  select s.place, j.id, j.namespace, j.steps and j.blame = 0 and j.lapses = 0 as marked
  from sent s join $schema.job j on j.id = s.id and j.owner = s.owner and j.fence = s.fence
  order by j.id for no key update of j
),
marked as (
  update $schema.job j set steps = true, blame = 0, lapses = 0  -- it makes progress: earlier deaths are not its fault
  from (select distinct id, namespace from held h where not h.marked) h
  where j.id = h.id and j.namespace = h.namespace
),
kept as (
  insert into $schema.step (job, namespace, number, name, content_type, result, started, finished)
  select s.id, h.namespace, s.number, s.name, s.content_type, s.result, to_timestamp(s.started),
         to_timestamp(s.finished)
  from sent s join held h on h.place = s.place
  on conflict (job, namespace, number) do nothing
)
select array_agg(place) from sent where place not in (select place from held)

-- name: steps
-- The steps of a job, in order.
select number, name, content_type, result, date_part('epoch', started), date_part('epoch', finished)
from $schema.step
where job = %(id)s and namespace = %(namespace)s
order by number
