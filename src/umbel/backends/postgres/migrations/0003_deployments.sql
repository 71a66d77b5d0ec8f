-- A pause may be of one worker, and says who holds it: operators, or a deployment beside them.
alter table $schema.pause add column holder text collate "C" not null default '';
alter table $schema.pause drop constraint pause_scope_check;
alter table $schema.pause add constraint pause_scope_check
  check (scope in ('all', 'queue', 'task', 'gate', 'worker'));
alter table $schema.pause drop constraint pause_pkey;
alter table $schema.pause add primary key (namespace, scope, name, holder);

-- The deployment under way, or the last there was. Its pauses come and go with it.
create table $schema.deployment (
  namespace text collate "C" primary key,
  id text collate "C" not null,
  plan jsonb not null,  -- who, where, why, and what stands still
  state text collate "C" not null check (state in ('waiting', 'go', 'ended', 'aborted')),
  epoch bigint not null,
  since timestamptz not null default statement_timestamp(),
  until timestamptz,  -- when it lapses, unless it is renewed
  went timestamptz,
  ended timestamptz,
  outcome text not null default '',
  check ((state = 'waiting') = (until is not null)),
  check ((state in ('ended', 'aborted')) = (ended is not null))
);
