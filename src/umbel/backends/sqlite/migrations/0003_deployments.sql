-- A pause may be of one worker, and says who holds it: operators, or a deployment beside them.
create table pause_held (
  namespace text not null,
  scope text not null check (scope in ('all', 'queue', 'task', 'gate', 'worker')),
  name text not null default '',
  holder text not null default '',
  since real not null,
  reason text not null default '',
  primary key (namespace, scope, name, holder)
) strict, without rowid;

insert into pause_held (namespace, scope, name, since, reason)
select namespace, scope, name, since, reason from pause;
drop table pause;
alter table pause_held rename to pause;

-- What was paused may have kept somebody from passing.
create trigger pause_ends after delete on pause
begin
  update line set look = 0 where namespace = old.namespace;
end;

-- The deployment under way, or the last there was. Its pauses come and go with it.
create table deployment (
  namespace text primary key not null,
  id text not null,
  plan text not null check (json_valid(plan)),  -- who, where, why, and what stands still
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
