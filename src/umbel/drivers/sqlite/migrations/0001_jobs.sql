-- Live jobs. A row here is both the message and its state; it leaves when the job is final. "Sent"
-- is a queued job whose message another broker carries.
create table job (
  seq integer primary key,  -- above all live ones; a number may come again once its job is gone
  id text not null unique check (length(id) = 36),
  namespace text not null,
  queue text not null check (length(queue) between 1 and 255),
  kind text not null default '' check (kind in ('', 'io', 'cpu')),
  task text not null check (length(task) between 1 and 255),
  type text not null default 'umbel.command'
    check (type in ('umbel.command', 'umbel.event', 'umbel.document')),
  state text not null default 'queued' check (state in ('scheduled', 'queued', 'sent', 'running')),
  priority integer not null default 0,
  content_type text not null default 'application/json',
  body blob not null,
  created real not null,
  not_before real,
  expires real,
  attempt integer not null default 1,
  deaths integer not null default 0,
  blame integer not null default 0,
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
  check ((state = 'running') = (owner is not null)),
  check ((state = 'scheduled') <= (not_before is not null))
) strict;

create index job_ready on job (namespace, queue, kind, priority desc, seq) where state = 'queued';
create index job_sent on job (namespace, queue, kind) where state = 'sent';
create index job_due on job (namespace, not_before) where state = 'scheduled';
create index job_owner on job (owner) where state = 'running';
create unique index job_unique on job (namespace, unique_key) where unique_key is not null;

-- Finished jobs: what is remembered of them, with the payload, so that they can be replayed.
create table record (
  id text primary key not null,
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
  reason text not null default ''
) strict;

create index record_finished on record (namespace, finished);
create index record_buried on record (namespace, finished) where state = 'buried';

-- Living workers. Removing a row is what ends every lease its incarnation holds.
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
  stopping integer not null default 0
) strict, without rowid;

-- What operators paused, and the number that grows with every change.
create table pause (
  namespace text not null,
  scope text not null check (scope in ('all', 'queue', 'task')),
  name text not null default '',
  since real not null,
  reason text not null default '',
  primary key (namespace, scope, name)
) strict, without rowid;

create table control (
  namespace text primary key not null,
  epoch integer not null default 0
) strict, without rowid;

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
