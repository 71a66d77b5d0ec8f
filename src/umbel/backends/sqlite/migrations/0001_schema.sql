-- Live jobs. A row is both the message and its state, and is deleted when the job is final. "Sent" is
-- a queued job whose message a transport carries.
create table job (
  seq integer primary key,  -- greater than those of all live jobs; it may be used again after its job is deleted
  id text not null check (length(id) = 36),
  namespace text not null,
  queue text not null check (length(queue) between 1 and 255),
  kind text not null default '' check (kind in ($kinds)),
  task text not null check (length(task) between 1 and 255),
  type text not null default 'umbel.command'
    check (type in ('umbel.command', 'umbel.event', 'umbel.document')),
  state text not null default 'queued' check (state in ('scheduled', 'waiting', 'queued', 'sent', 'running')),
  priority integer not null default 0,
  content_type text not null default 'application/json',
  body blob not null,
  created real not null,
  not_before real,
  expires real,
  attempt integer not null default 1,
  deaths integer not null default 0,
  blame integer not null default 0,
  lapses integer not null default 0,  -- how often its lease lapsed while its worker was alive
  max_deaths integer not null default 3,
  unique_key text,
  traceparent text,
  headers text not null default '{}' check (json_valid(headers)),
  owner text,
  worker text,
  fence integer not null default 0,
  claimed real,
  sections text not null default '{}' check (json_valid(sections)),
  attempts text not null default '[]' check (json_valid(attempts)),
  progress_done real,
  progress_of real,
  cancel_reason text,
  gates text check (gates is null or json_valid(gates)),  -- the gates that it has to pass, in order; null if none
  line text,  -- the gate at which it waits
  slots text check (slots is null or json_valid(slots)),  -- the slots that it holds of gates that it has passed
  heard integer not null default 0,  -- whether the one worker that it is for has received it
  steps integer not null default 0,  -- whether it has steps; few jobs do
  unique (id, namespace),  -- an id names one job in each namespace
  check ((state = 'waiting') = (line is not null)),
  check ((state = 'running') = (owner is not null)),
  check ((state = 'scheduled') <= (not_before is not null))
) strict;

create index job_ready on job (namespace, queue, kind, priority desc, seq) where state = 'queued';
create index job_sent on job (namespace, queue, kind) where state = 'sent';
create index job_due on job (namespace, not_before) where state = 'scheduled';
create index job_owner on job (owner) where state = 'running';
create index job_line on job (namespace, line, queue, kind, priority desc, seq)
  where state = 'waiting';
create unique index job_unique on job (namespace, unique_key) where unique_key is not null;

-- Finished jobs, with the payload, so that they can be replayed.
create table record (
  id text not null,
  namespace text not null,
  queue text not null,
  kind text not null,
  task text not null,
  type text not null,
  state text not null check (state in ('succeeded', 'buried', 'cancelled', 'expired')),
  priority integer not null,
  content_type text not null,
  body blob not null,
  created real not null,
  not_before real,
  expires real,
  attempt integer not null,
  deaths integer not null,
  lapses integer not null default 0,
  max_deaths integer not null,
  unique_key text,
  traceparent text,
  headers text not null,
  worker text,
  fence integer not null,
  claimed real,
  attempts text not null,
  progress_done real,
  progress_of real,
  finished real not null,
  result_type text,
  result blob,
  failure text,
  reason text not null default '',
  primary key (id, namespace)
) strict;

-- It has all columns that pruning needs to find the end of the history without reading the records.
create index record_finished on record (namespace, finished, state);
create index record_buried on record (namespace, finished) where state = 'buried';

-- The time up to which the history has been pruned.
create table pruned (
  namespace text primary key not null,
  until real not null
) strict, without rowid;

-- A record that is made while the machine's clock is behind must not look old when the clock is correct again.
create trigger record_is_new after insert on record
  when new.finished < (select until from pruned where namespace = new.namespace)
begin
  update record set finished = (select until from pruned where namespace = new.namespace)
  where rowid = new.rowid;
end;

-- Steps that jobs have done. They are kept as long as the job is live or has a record.
create table step (
  job text not null check (length(job) = 36),
  namespace text not null,
  number integer not null check (number > 0),
  name text not null check (length(name) between 1 and 255),
  content_type text not null,
  result blob not null,
  started real not null,
  finished real not null,
  primary key (job, namespace, number)
) strict;

-- Registered workers. Deleting a row ends all leases of its incarnation.
create table worker (
  incarnation text primary key not null,
  namespace text not null,
  entry text not null check (json_valid(entry)),
  name text not null,
  started real not null,
  beat integer not null default 0,
  beaten real not null,
  running integer not null default 0,
  epoch integer not null default 0,
  stopping integer not null default 0,
  idx integer not null default 0  -- its index: registered workers of different names never share one
) strict, without rowid;

create index worker_seat on worker (namespace, idx);

-- Counted deaths. One is taken back if the process of the incarnation turns out to be alive.
create table death (
  incarnation text not null,
  job text not null,
  namespace text not null,
  blamed integer not null,
  counted real not null,
  primary key (incarnation, job)
) strict, without rowid;

create index death_counted on death (counted);

-- Incarnations whose process reported that it was alive when their leases lapsed.
create table lapse (
  incarnation text primary key not null,
  namespace text not null,
  reported real not null
) strict, without rowid;

-- The indexes of workers. The index of a worker that has unregistered is kept for it for a while.
create table seat (
  namespace text not null,
  idx integer not null check (idx >= 0),
  name text not null,
  kept real,
  retiring integer not null default 0,
  primary key (namespace, idx)
) strict, without rowid;

-- Routes: which worker has which key, live and released ones. Held: the jobs of the route that are in
-- the inbox or run. Rested: since when there are none, as of the last check.
create table route (
  id integer primary key autoincrement,
  namespace text not null,
  key text not null,
  idx integer not null,
  made real not null,
  released real,
  why text not null default '',
  held integer not null default 0,
  closing integer not null default 0,
  target integer,  -- the index for the next route of this key
  rested real,
  among text not null default '[]'
) strict;

create unique index route_live on route (namespace, key) where released is null;
create index route_seat on route (namespace, idx) where released is null;
create index route_history on route (namespace, key, id);

-- Messages to one worker that it has received, so that it accepts none twice.
create table heard (
  namespace text not null,
  job text not null,
  until real not null,
  primary key (namespace, job)
) strict, without rowid;

create index heard_until on heard (until);

-- Pauses, and the epoch: a number that grows with every change of them.
create table pause (
  namespace text not null,
  scope text not null check (scope in ('all', 'queue', 'task', 'gate', 'worker')),
  name text not null default '',
  holder text not null default '',  -- empty for operators, else a deployment or 'missing'
  since real not null,
  reason text not null default '',
  primary key (namespace, scope, name, holder)
) strict, without rowid;

create table control (
  namespace text primary key not null,
  epoch integer not null default 0
) strict, without rowid;

-- The current deployment, or the last one. Its pauses are added and removed with it.
create table deployment (
  namespace text primary key not null,
  id text not null,
  plan text not null check (json_valid(plan)),  -- who deploys, where, why, and what is paused
  state text not null check (state in ('waiting', 'go', 'ended', 'aborted')),
  epoch integer not null,
  since real not null,
  until real,  -- when it lapses, unless it is renewed
  went real,
  ended real,
  outcome text not null default '',
  check ((state = 'waiting') = (until is not null)),
  check ((state in ('ended', 'aborted')) = (ended is not null))
) strict, without rowid;

-- Gates: their rules, how many slots of each are held, and where jobs wait. Triggers free the slots of
-- every job that ends or returns to its queue, whichever program changed it.
create table rule (
  namespace text not null,
  name text not null,
  declared text not null check (json_valid(declared)),
  imposed integer,  -- the capacity that an operator set, in place of the declared one
  primary key (namespace, name)
) strict, without rowid;

create table gate (
  namespace text not null,
  key text not null,
  held integer not null default 0,
  paces text not null default '[]',  -- of a rate: when each of its paces allows the next job
  primary key (namespace, key)
) strict, without rowid;

-- A lane of jobs that wait at a gate. Look: when a job may pass; null until a slot is freed.
create table line (
  namespace text not null,
  key text not null,
  queue text not null,
  kind text not null,
  look real,
  turn integer not null default 0,  -- grows with each grant: the lane served last comes last
  primary key (namespace, key, queue, kind)
) strict, without rowid;

create index line_look on line (namespace, queue, kind, turn, look) where look is not null;
create index line_turn on line (namespace, turn);

create table member (
  namespace text not null,
  pool text not null,
  name text not null,
  data text not null default '{}' check (json_valid(data)),
  condition text not null default 'ready'
    check (condition in ('ready', 'drained', 'quarantined', 'leaving', 'gone')),
  coded integer not null default 0,  -- 1: the code declares it; 2: the code has removed it
  job text,
  fence integer not null default 0,
  turn integer not null default 0,
  failures integer not null default 0,
  check_at real,
  primary key (namespace, pool, name)
) strict, without rowid;

create index member_job on member (job, namespace) where job is not null;

create trigger job_waits after insert on job when new.state = 'waiting'
begin
  insert into line (namespace, key, queue, kind, look, turn)
  values (new.namespace, new.line, new.queue, new.kind, 0,
          coalesce((select max(turn) from line where namespace = new.namespace), 0))
  on conflict do update set look = 0;
end;

create trigger job_waits_now after update of state, line, queue, kind on job
  when new.state = 'waiting'
begin
  insert into line (namespace, key, queue, kind, look, turn)
  values (new.namespace, new.line, new.queue, new.kind, 0,
          coalesce((select max(turn) from line where namespace = new.namespace), 0))
  on conflict do update set look = 0;
end;

create trigger job_frees after update of slots on job
  when old.slots is not null and new.slots is null
begin
  update gate set held = held - 1
  where namespace = old.namespace
    and key in (select json_extract(value, '$.gate') from json_each(old.slots));
  delete from gate  -- of a token that no job uses
  where namespace = old.namespace and held = 0 and paces = '[]' and instr(key, '#')
    and key in (select json_extract(value, '$.gate') from json_each(old.slots));
  update line set look = 0
  where namespace = old.namespace
    and key in (select json_extract(value, '$.gate') from json_each(old.slots));
  update member set job = null, condition = iif(condition = 'leaving', 'gone', condition)
  where job = old.id and namespace = old.namespace;
  update route set held = held - 1
  where id in (select json_extract(value, '$.route') from json_each(old.slots));
end;

-- Statements that delete jobs free their slots first. A trigger for that would read each deleted row and
-- make a deletion three times as expensive, for the few jobs that have slots.

create trigger steps_end_with_record after delete on record
begin
  delete from step
  where job = old.id and namespace = old.namespace
    and not exists (select 1 from job where id = old.id and namespace = old.namespace);
end;

-- After a pause ends, all gates are checked again.
create trigger pause_ends after delete on pause
begin
  update line set look = 0 where namespace = old.namespace;
end;

create trigger member_comes after insert on member
begin
  update line set look = 0 where namespace = new.namespace and key = 'pool:' || new.pool;
end;

create trigger member_is_back after update of condition, job on member
  when new.condition = 'ready' and new.job is null
begin
  update line set look = 0 where namespace = new.namespace and key = 'pool:' || new.pool;
end;

-- A new worker may get routes that no other could have, or return to its own.
create trigger worker_comes after insert on worker
begin
  update line set look = 0
  where namespace = new.namespace and key >= 'route:' and key < 'route;' and look is not 0;
end;

-- Publishing from SQL: insert into publish (task, args) values ('tasks.add', '[1, 2]');
create view publish as
  select id, task, '[]' as args, '{}' as kwargs, queue, priority, 0.0 as delay, namespace from job;

create trigger publish_insert instead of insert on publish
begin
  insert into job (id, namespace, queue, task, state, priority, body, created, not_before)
  values (
    coalesce(new.id, lower(
      hex(randomblob(4)) || '-' || hex(randomblob(2)) || '-4' || substr(hex(randomblob(2)), 2) ||
      '-a' || substr(hex(randomblob(2)), 2) || '-' || hex(randomblob(6)))),
    coalesce(new.namespace, 'umbel'),
    coalesce(new.queue, 'default'),
    new.task,
    iif(coalesce(new.delay, 0) > 0, 'scheduled', 'queued'),
    coalesce(new.priority, 0),
    cast(json_object('args', json(coalesce(new.args, '[]')),
                     'kwargs', json(coalesce(new.kwargs, '{}'))) as blob),
    (julianday('now') - 2440587.5) * 86400.0,
    iif(coalesce(new.delay, 0) > 0,
        (julianday('now') - 2440587.5) * 86400.0 + new.delay, null)
  );
end;

-- How a job ended, as a CloudEvent: select event from document where id = '...' and namespace = 'umbel';
-- Null while it is not finished, no row for an unknown id. A result that is not JSON stays in the record.
create view document as
  select id, namespace, null as event from job
  union all
  select id, namespace, json_patch(
    json_object(
      'specversion', '1.0', 'type', 'umbel.document', 'id', id, 'source', '/umbel/' || namespace,
      'subject', task, 'time', strftime('%Y-%m-%dT%H:%M:%fZ', finished, 'unixepoch'),
      'namespace', namespace, 'datacontenttype', 'application/json', 'state', state,
      'data', json(case
        when state <> 'succeeded' then coalesce(failure, json_object('message', reason))
        when result_type like '%json' and json_valid(cast(result as text)) then cast(result as text)
        else 'null' end)),
    json_object(
      'reason', case
        when state = 'succeeded' and result is not null
          and not (result_type like '%json' and json_valid(cast(result as text)))
        then 'data: ' || result_type || ', see the record'
        else nullif(substr(reason, 1, 1000), '') end,
      'correlationid', json_extract(headers, '$.correlationid'))) as event
  from record;
