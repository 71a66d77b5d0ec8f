-- Seats of workers. One that a worker left in good order is kept for it for a while.
create table $schema.seat (
  namespace text collate "C" not null,
  idx integer not null check (idx >= 0),
  name text collate "C" not null,
  kept timestamptz,
  retiring boolean not null default false,
  primary key (namespace, idx)
);

create index worker_seat on $schema.worker (namespace, idx);

-- Which worker has which key, live ones and the history. Held: jobs that are in its queue by it, or
-- run. Rested: since when nothing does, as far as somebody has looked.
create table $schema.route (
  id bigint generated always as identity primary key,
  namespace text collate "C" not null,
  key text collate "C" not null,
  idx integer not null,
  made timestamptz not null default clock_timestamp(),  -- who makes it may have waited for others
  released timestamptz,
  why text not null default '',
  held integer not null default 0,
  closing smallint not null default 0,  -- 1: when nothing runs by it any more; 2: its worker is lost
  target integer,  -- where the next one of this key is to go
  rested timestamptz,
  among jsonb not null default '[]'
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);

create unique index route_live on $schema.route (namespace, key) where released is null;
create index route_seat on $schema.route (namespace, idx) where released is null;
create index route_history on $schema.route (namespace, key, id);

-- A life begins: at the index it asks for, at one that is kept for its name, or at the lowest that is
-- free. Who has the index, if another name does; then nothing begins.
create function $schema.enlist(
  space text, life text, called text, said jsonb, inout seat integer, out taken text
) language plpgsql as $$
declare
  found_at integer;
begin
  perform $schema.lock_gates(space);
  select w.idx into found_at from $schema.worker w where w.incarnation = life;
  if found then
    seat := found_at;
    return;
  end if;
  if seat is null then
    select s.idx into seat from $schema.seat s
    where s.namespace = space and s.name = called
      and not exists (select 1 from $schema.worker w where w.namespace = space and w.idx = s.idx)
    order by coalesce(s.kept > statement_timestamp(), false) desc, s.idx limit 1;
    if not found then
      select min(f.idx) into seat
      from (select 0 as idx union all select s.idx + 1 from $schema.seat s where s.namespace = space) f
      where not exists (select 1 from $schema.worker w where w.namespace = space and w.idx = f.idx)
        and not exists (select 1 from $schema.seat k where k.namespace = space and k.idx = f.idx
                                                       and k.kept > statement_timestamp());
    end if;
  else
    select w.name into taken from $schema.worker w
    where w.namespace = space and w.idx = seat and w.name <> called limit 1;
    if found then
      return;
    end if;
  end if;
  if exists (select 1 from $schema.seat s
             where s.namespace = space and s.idx = enlist.seat and s.name <> called) then
    -- Its routes were another worker's, and that is gone.
    update $schema.seat s set kept = null where s.namespace = space and s.idx = enlist.seat;
    perform $schema.settle_routes(space);
  end if;
  insert into $schema.seat as s (namespace, idx, name) values (space, seat, called)
  on conflict (namespace, idx) do update set name = excluded.name, kept = null, retiring = false;
  insert into $schema.worker (incarnation, namespace, entry, name, idx)
  values (life, space, jsonb_set(said, '{index}', to_jsonb(seat)), called, seat);
  -- It may be given the routes that nobody could have, or come back to those it had.
  insert into $schema.knock (namespace, key) values (space, 'route:');
  perform pg_notify('$channel', 'g:' || space);
end $$;

-- Whether a worker with this index is enlisted, or the seat kept for it.
create function $schema.is_seated(space text, seat integer) returns boolean language sql stable as $$
  select exists (select 1 from $schema.worker w where w.namespace = space and w.idx = seat)
      or exists (select 1 from $schema.seat s
                 where s.namespace = space and s.idx = seat and s.kept > statement_timestamp())
$$;

-- Releases what is to be released, now that it can be; its jobs are back in line first.
create function $schema.settle_routes(space text, idle double precision default null)
returns setof $schema.route language plpgsql
set enable_seqscan to off set enable_bitmapscan to off
as $$
declare
  ended $schema.route;
begin
  perform $schema.lock_gates(space);
  update $schema.route r
  set closing = 2, why = case r.why when '' then 'its worker is gone' else r.why end
  where r.namespace = space and r.released is null and r.closing < 2
    and not $schema.is_seated(space, r.idx);
  if idle is not null then
    perform $schema.fold_knocks(space);
    update $schema.route r set rested = statement_timestamp()
    where r.namespace = space and r.released is null and r.held = 0 and r.rested is null;
    update $schema.route r set closing = 1, why = 'idle'
    where r.namespace = space and r.released is null and r.closing = 0 and r.held = 0
      and r.rested <= statement_timestamp() - make_interval(secs => idle)
      and not exists (select 1 from $schema.job j
                      where j.namespace = space and j.line = 'route:#' || r.key
                        and j.state = 'waiting');
  end if;
  if not exists (select 1 from $schema.route r
                 where r.namespace = space and r.released is null and r.closing > 0) then
    return;
  end if;
  update $schema.job j
  set state = 'waiting', queue = j.slots -> -1 ->> 'home', line = j.gates ->> 0, slots = null
  from $schema.route r
  where r.namespace = space and r.released is null and r.closing > 0
    and j.namespace = space and j.queue = 'worker-' || r.idx and j.kind in ('', 'io', 'cpu')
    and j.state in ('queued', 'sent') and (j.slots -> -1 ->> 'route')::bigint = r.id;
  perform $schema.fold_knocks(space);
  for ended in
    update $schema.route r set released = clock_timestamp()
    where r.namespace = space and r.released is null and r.closing > 0
      and (r.held = 0 or r.closing = 2)
    returning r.*
  loop
    update $schema.line l set look = '-infinity'
    where l.namespace = space and l.key = 'route:#' || ended.key;
    return next ended;
  end loop;
  perform pg_notify('$channel', 'g:' || space);
end $$;

-- To the worker with the fewest live routes, then the lowest index; or to where it was to move. No
-- row when nobody could have it.
create function $schema.make_route(space text, named text, to_queue text, of_task text)
returns setof $schema.route language plpgsql as $$
declare
  among_whom jsonb;
  chosen integer;
  wanted integer;
begin
  select jsonb_agg(jsonb_build_array(c.idx, c.many) order by c.many, c.idx) into among_whom
  from (
    select w.idx, (select count(*) from $schema.route r
                   where r.namespace = space and r.idx = w.idx and r.released is null) as many
    from $schema.worker w join $schema.seat s on s.namespace = w.namespace and s.idx = w.idx
    where w.namespace = space and not w.stopping and not s.retiring
      and w.entry -> 'queues' ? to_queue and w.entry -> 'tasks' ? of_task
    group by w.idx) c;
  if among_whom is null then
    return;
  end if;
  chosen := (among_whom -> 0 ->> 0)::integer;
  select r.target into wanted from $schema.route r
  where r.namespace = space and r.key = named order by r.id desc limit 1;
  if exists (select 1 from jsonb_array_elements(among_whom) a where (a ->> 0)::integer = wanted) then
    chosen := wanted;
  end if;
  update $schema.line l set look = '-infinity'  -- for those of other queues and kinds
  where l.namespace = space and l.key = 'route:#' || named;
  return query insert into $schema.route (namespace, key, idx, among)
  values (space, named, chosen, among_whom) returning *;
end $$;

-- Lets those of one lane go to the worker that has their key: into its own queue. Who is to run only
-- where there is a route, and finds none, passes into this queue to end, as far as there is room.
create function $schema.send_on(
  space text, at_gate text, to_queue text, of_kind text, room integer, out passed integer,
  out entered uuid[]
) language plpgsql as $$
declare
  named constant text := substr(at_gate, 8);  -- after 'route:#'
  most constant integer := 1000;
  paused constant text[] := array(select p.name from $schema.pause p
                                  where p.namespace = space and p.scope = 'task');
  way $schema.route;
  job record;
  jobs uuid[] := '{}';
  next_look timestamptz;
  found_many integer := 0;
begin
  passed := 0;
  entered := '{}';
  select * into way from $schema.route r
  where r.namespace = space and r.key = named and r.released is null;
  if found and (way.closing > 0 or not $schema.is_seated(space, way.idx)) then
    perform $schema.settle_routes(space);
    select * into way from $schema.route r
    where r.namespace = space and r.key = named and r.released is null;
  end if;
  if way.id is null or way.closing = 0 then
    for job in
      select j.id, j.seq, j.task, j.headers ? 'onlyifrouted' as only_if_routed from $schema.job j
      where j.namespace = space and j.line = at_gate and j.queue = to_queue and j.kind = of_kind
        and j.state = 'waiting' and j.task <> all (paused)
      order by j.priority desc, j.seq limit most for update skip locked
    loop
      found_many := found_many + 1;
      if way.id is null and job.only_if_routed then
        if exists (
          select 1 from $schema.job b
          where b.namespace = space and b.line = at_gate and b.state = 'waiting'
            and b.seq < job.seq and not b.headers ? 'onlyifrouted') then
          -- That one makes the route; or it goes, and tells nobody.
          jobs := jobs || job.id;
          next_look := statement_timestamp() + interval '1 second';
          continue;
        end if;
        if cardinality(entered) >= room then
          next_look := '-infinity';
          exit;
        end if;
        update $schema.job j
        set state = 'queued', line = null,
            slots = coalesce(j.slots, '[]') || jsonb_build_array(
              jsonb_build_object('gate', at_gate, 'rejected', true))
        where j.id = job.id and j.namespace = space;
        entered := entered || job.id;
        continue;
      end if;
      if way.id is null then
        select * into way from $schema.make_route(space, named, to_queue, job.task);
        exit when way.id is null;
      end if;
      jobs := jobs || job.id;
    end loop;
  end if;
  if way.id is null then
    jobs := '{}';
  elsif cardinality(jobs) > 0 then
    update $schema.job j
    set state = 'queued', line = null, queue = 'worker-' || way.idx,
        slots = coalesce(j.slots, '[]') || jsonb_build_array(
          jsonb_build_object('gate', at_gate, 'route', way.id, 'home', to_queue))
    where j.id = any (jobs) and j.namespace = space;
    update $schema.route r set held = r.held + cardinality(jobs), rested = null where r.id = way.id;
    perform pg_notify('$channel', 'r:' || space || ':worker-' || way.idx);
  end if;
  passed := cardinality(jobs) + cardinality(entered);
  if found_many = most and passed > 0 then
    next_look := '-infinity';
  end if;
  perform 1 from $schema.job j
  where j.namespace = space and j.line = at_gate and j.queue = to_queue and j.kind = of_kind
    and j.state = 'waiting' and j.task <> all (paused) limit 1;
  if found and found_many = 0 and (way.id is null or way.closing = 0) then
    next_look := statement_timestamp() + interval '50 ms';  -- somebody has them locked just now
  end if;
  perform 1 from $schema.job j
  where j.namespace = space and j.line = at_gate and j.queue = to_queue and j.kind = of_kind
    and j.state = 'waiting' limit 1;
  if found then
    update $schema.line l set look = next_look, turn = nextval('$schema.turn')
    where l.namespace = space and l.key = at_gate and l.queue = to_queue and l.kind = of_kind;
  else
    delete from $schema.line l
    where l.namespace = space and l.key = at_gate and l.queue = to_queue and l.kind = of_kind;
  end if;
end $$;

-- A key's route is to be released, and the next one to go to an index if one is given. Its last
-- route as it is then; no row when the key has none.
create function $schema.close_route(space text, named text, reason text, wanted integer)
returns setof $schema.route language plpgsql as $$
begin
  perform $schema.lock_gates(space);
  update $schema.route r set closing = greatest(r.closing, 1), why = reason, target = wanted
  where r.namespace = space and r.key = named and r.released is null;
  if not found then
    return;
  end if;
  perform $schema.settle_routes(space);
  return query select * from $schema.route r
  where r.namespace = space and r.key = named order by r.id desc limit 1;
end $$;

-- An index gets no more routes, and those that it has are to be released; or it may get some again.
-- How many it has.
create function $schema.retire(space text, seat integer, leaves boolean)
returns bigint language plpgsql as $$
declare
  many bigint;
begin
  perform $schema.lock_gates(space);
  select count(*) into many from $schema.route r
  where r.namespace = space and r.idx = seat and r.released is null;
  update $schema.seat s set retiring = leaves where s.namespace = space and s.idx = seat;
  if leaves then
    update $schema.route r set closing = greatest(r.closing, 1), why = 'retired'
    where r.namespace = space and r.idx = seat and r.released is null;
    perform $schema.settle_routes(space);
  else
    insert into $schema.knock (namespace, key) values (space, 'route:');
    perform pg_notify('$channel', 'g:' || space);
  end if;
  return many;
end $$;

-- Whether the one worker that a job is for has heard it.
alter table $schema.job add column heard boolean;

-- Messages to one worker that it has heard, so that none is heard twice.
create table $schema.heard (
  namespace text collate "C" not null,
  job uuid not null,
  until timestamptz not null,
  primary key (namespace, job)
);

create index heard_until on $schema.heard (until);
