-- name: keep
-- Steps under leases that are held are kept, the first of each place. Answers the places of those
-- whose lease is not. An owner is a worker of one namespace, which is the job's. The lock lasts to the end of the transaction: nobody takes the job before.
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
  update $schema.job j set steps = true, blame = 0, lapses = 0  -- it gets on: nothing so far is its fault
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
-- What a job of this namespace has done, in order.
select number, name, content_type, result, date_part('epoch', started), date_part('epoch', finished)
from $schema.step
where job = %(id)s and namespace = %(namespace)s
order by number
