-- The whole schema. Other systems write the first four tables, so their names and
-- columns are part of the contract, and IF NOT EXISTS: `migrate remove` leaves them.
-- Constraints refuse what the API cannot show. No trigger, no lock, no counter is
-- put on those tables: their writers pay for indexes and nothing else.
-- The publication and the slot need rights that a migration may lack. They are made
-- after it, every time: publication.go, origin/follower/slot.go.

-- +goose Up
CREATE TABLE IF NOT EXISTS workspaces (
    id              uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    name            text NOT NULL CHECK (name <> '') CONSTRAINT workspaces_name_size CHECK (octet_length(name) <= 65536),
    suspended_at    timestamptz,
    rate_per_second float8 CHECK (rate_per_second >= 0 AND rate_per_second < 'Infinity'),
    burst           int CHECK (burst >= 1),
    created_at      timestamptz NOT NULL DEFAULT now(),
    quota           bigint, -- requests in each calendar day or month (UTC), beside the rate
    quota_period    text,
    CONSTRAINT workspaces_quota CHECK (
        quota IS NULL AND quota_period IS NULL
        OR quota IS NOT NULL AND quota_period IS NOT NULL AND quota BETWEEN 1 AND 4000000000 AND quota_period IN ('day', 'month'))
);

CREATE TABLE IF NOT EXISTS api_keys (
    id              uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    workspace_id    uuid NOT NULL REFERENCES workspaces (id) ON DELETE CASCADE,
    name            text NOT NULL DEFAULT '' CONSTRAINT api_keys_name_size CHECK (octet_length(name) <= 65536),
    key_hash        bytea NOT NULL UNIQUE CHECK (length(key_hash) = 32),
    key_prefix      text NOT NULL CONSTRAINT api_keys_key_prefix_size CHECK (octet_length(key_prefix) <= 65536),
    scopes          text[] NOT NULL CHECK (scopes <@ ARRAY['items:read', 'contacts:read'])
                    CONSTRAINT api_keys_scopes_size CHECK (cardinality(scopes) <= 16),
    rate_per_second float8 CHECK (rate_per_second >= 0 AND rate_per_second < 'Infinity'),
    burst           int CHECK (burst >= 1),
    expires_at      timestamptz,
    revoked_at      timestamptz,
    created_at      timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX api_keys_by_workspace ON api_keys (workspace_id, created_at, id);

-- Texts have at most 64 KiB, numbers 1,000 digits before the point and after it:
-- one row does not make a page of any size. usage_30 is a JSON number, which most
-- clients read as a double: above 2^53 - 1 it would be another number for them.
CREATE TABLE IF NOT EXISTS items (
    workspace_id         uuid NOT NULL,
    id                   uuid NOT NULL DEFAULT gen_random_uuid(),
    name                 text NOT NULL CHECK (name <> '') CONSTRAINT items_name_size CHECK (octet_length(name) <= 65536),
    type                 text NOT NULL DEFAULT 'GOODS' CHECK (type IN ('GOODS', 'SERVICE')),
    sku                  text CONSTRAINT items_sku_size CHECK (octet_length(sku) <= 65536),
    description          text CONSTRAINT items_description_size CHECK (octet_length(description) <= 65536),
    unit                 text CONSTRAINT items_unit_size CHECK (octet_length(unit) <= 65536),
    image_path           text CONSTRAINT items_image_path_size CHECK (octet_length(image_path) <= 65536),
    preferred_contact_id uuid,
    cost_price           numeric NOT NULL DEFAULT 0 CHECK (cost_price > '-Infinity' AND cost_price < 'Infinity')
                         CONSTRAINT items_cost_price_size CHECK (abs(cost_price) < 1e1000 AND scale(cost_price) <= 1000),
    avg_cost             numeric NOT NULL DEFAULT 0 CHECK (avg_cost > '-Infinity' AND avg_cost < 'Infinity')
                         CONSTRAINT items_avg_cost_size CHECK (abs(avg_cost) < 1e1000 AND scale(avg_cost) <= 1000),
    selling_price        numeric NOT NULL DEFAULT 0 CHECK (selling_price > '-Infinity' AND selling_price < 'Infinity')
                         CONSTRAINT items_selling_price_size CHECK (abs(selling_price) < 1e1000 AND scale(selling_price) <= 1000),
    taxable              bool NOT NULL DEFAULT true,
    track_stock          bool NOT NULL DEFAULT false,
    stock_on_hand        numeric NOT NULL DEFAULT 0 CHECK (stock_on_hand > '-Infinity' AND stock_on_hand < 'Infinity')
                         CONSTRAINT items_stock_on_hand_size CHECK (abs(stock_on_hand) < 1e1000 AND scale(stock_on_hand) <= 1000),
    reorder_point        numeric CHECK (reorder_point > '-Infinity' AND reorder_point < 'Infinity')
                         CONSTRAINT items_reorder_point_size CHECK (abs(reorder_point) < 1e1000 AND scale(reorder_point) <= 1000),
    usage_30             numeric NOT NULL DEFAULT 0 CHECK (usage_30 >= 0 AND usage_30 < 'Infinity')
                         CONSTRAINT items_usage_30_size CHECK (scale(usage_30) <= 1000)
                         CONSTRAINT items_usage_30_bound CHECK (usage_30 <= 9007199254740991),
    active               bool NOT NULL DEFAULT true,
    created_at           timestamptz(3) NOT NULL DEFAULT now() CHECK (created_at >= '0001-01-01Z' AND created_at < '10000-01-01Z'),
    PRIMARY KEY (workspace_id, id)
);

CREATE TABLE IF NOT EXISTS contacts (
    workspace_id uuid NOT NULL,
    id           uuid NOT NULL DEFAULT gen_random_uuid(),
    name         text NOT NULL CHECK (name <> '') CONSTRAINT contacts_name_size CHECK (octet_length(name) <= 65536),
    email        text CONSTRAINT contacts_email_size CHECK (octet_length(email) <= 65536),
    phone        text CONSTRAINT contacts_phone_size CHECK (octet_length(phone) <= 65536),
    address      text CONSTRAINT contacts_address_size CHECK (octet_length(address) <= 65536),
    tin          text CONSTRAINT contacts_tin_size CHECK (octet_length(tin) <= 65536),
    is_customer  bool NOT NULL DEFAULT false,
    is_supplier  bool NOT NULL DEFAULT false,
    active       bool NOT NULL DEFAULT true,
    created_at   timestamptz(3) NOT NULL DEFAULT now() CHECK (created_at >= '0001-01-01Z' AND created_at < '10000-01-01Z'),
    PRIMARY KEY (workspace_id, id)
);

-- What the lists read. Every index begins with the workspace and holds active
-- rows only.
CREATE EXTENSION IF NOT EXISTS pg_trgm;   -- both are trusted: the owner of the
CREATE EXTENSION IF NOT EXISTS btree_gin; -- database may create them

-- Names in the order of any language, upper and lower case alike. Not
-- deterministic: 'Chai' and 'CHAI' are equal, so their ids order them.
CREATE COLLATION name_order (provider = icu, locale = 'und-u-ks-level2', deterministic = false);

-- The part of a name that orders it: as much as a cursor of 512 characters can
-- carry (80 characters of 4 bytes), and far below what a btree entry may hold,
-- so that a writer's long name is never refused.
CREATE FUNCTION name_key(name text) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN name::varchar(80)::text; -- faster than left(name, 80): it counts no characters of a name of 80 bytes

-- A text as search compares it, in any language and whatever the locale of the
-- database is. Lower and then upper case, because only upper case tells all
-- forms of a letter alike (Greek final sigma, German sharp s).
CREATE FUNCTION search_fold(t text) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN upper(lower(t COLLATE "und-x-icu"));

-- The searched fields of a row in one text, for one index. A match in it is a
-- candidate: the page's statement compares field by field.
CREATE FUNCTION search_text(a text, b text, c text, d text) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN search_fold(coalesce(a, '') || E'\n' || coalesce(b, '') || E'\n' || coalesce(c, '') || E'\n' || coalesce(d, ''));

-- The grams of a folded text: every three characters in a row in which there is
-- no blank or line feed, as numbers. A text that contains another has all of
-- its grams, in any language and whatever the locale of the database is.
-- The upper half is the workspace's: its grams lie side by side in the index,
-- which keeps a writer to few pages, and what is read of them is its own. Two
-- workspaces of one hash, or two grams, cost time; rows are compared anyway.
CREATE FUNCTION search_grams(workspace uuid, folded text) RETURNS bigint[]
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN ARRAY(
        SELECT own + hashtext(a || b || c)
        FROM (SELECT unnest(letters) AS a, unnest(letters[2:]) AS b, unnest(letters[3:]) AS c, own
              FROM (SELECT string_to_array(replace(folded COLLATE "C", E'\n', ' '), NULL, ' ') AS letters, -- blanks are NULL
                           uuid_hash(workspace)::bigint << 32 AS own OFFSET 0) text) three
        WHERE a IS NOT NULL AND b IS NOT NULL AND c IS NOT NULL);

CREATE INDEX items_by_created_at ON items (workspace_id, created_at, id) WHERE active;
CREATE INDEX items_by_name ON items (workspace_id, (name_key(name) COLLATE name_order), id) WHERE active;

CREATE INDEX contacts_by_created_at ON contacts (workspace_id, created_at, id) WHERE active;
CREATE INDEX contacts_by_name ON contacts (workspace_id, (name_key(name) COLLATE name_order), id) WHERE active;

-- Filters that usually keep few rows have indexes of those rows alone; the
-- others (goods, tracked, customers) keep most rows and walk the lists above.
CREATE INDEX items_low_by_created_at ON items (workspace_id, created_at, id)
    WHERE active AND track_stock AND stock_on_hand <= reorder_point;
CREATE INDEX items_low_by_name ON items (workspace_id, (name_key(name) COLLATE name_order), id)
    WHERE active AND track_stock AND stock_on_hand <= reorder_point;
CREATE INDEX items_services_by_created_at ON items (workspace_id, created_at, id) WHERE active AND type = 'SERVICE';
CREATE INDEX items_services_by_name ON items (workspace_id, (name_key(name) COLLATE name_order), id) WHERE active AND type = 'SERVICE';
CREATE INDEX contacts_suppliers_by_created_at ON contacts (workspace_id, created_at, id) WHERE active AND is_supplier;
CREATE INDEX contacts_suppliers_by_name ON contacts (workspace_id, (name_key(name) COLLATE name_order), id) WHERE active AND is_supplier;

-- ANALYZE is spared the grams: plans do not depend on how often which is found.
CREATE INDEX items_by_grams ON items USING gin (search_grams(workspace_id, search_text(name, sku, description, NULL))) WHERE active;
ALTER INDEX items_by_grams ALTER COLUMN 1 SET STATISTICS 0;
CREATE INDEX contacts_by_grams ON contacts USING gin (search_grams(workspace_id, search_text(name, email, phone, tin))) WHERE active;
ALTER INDEX contacts_by_grams ALTER COLUMN 1 SET STATISTICS 0;

-- What each key was used for, by the hour, and when it was last used. Nodes write these
-- three tables and no others.
-- Kept for 35 days. fillfactor leaves room to update a row on its page: that
-- touches no index.
CREATE TABLE key_usage (
    workspace_id uuid NOT NULL,
    hour         timestamptz NOT NULL,
    key_id       uuid NOT NULL,
    requests     bigint NOT NULL,
    refused      bigint NOT NULL,
    not_modified bigint NOT NULL,
    bypassed     bigint NOT NULL,
    bytes        bigint NOT NULL,
    queries      bigint NOT NULL,
    PRIMARY KEY (workspace_id, hour, key_id)
) WITH (fillfactor = 70);
CREATE INDEX key_usage_by_hour ON key_usage (hour);

CREATE TABLE key_last_used (
    key_id       uuid PRIMARY KEY,
    last_used_at timestamptz NOT NULL
) WITH (fillfactor = 70);

-- The last batch that each run of a node has written: one that is sent again,
-- because its answer was lost, counts once.
CREATE TABLE usage_writers (
    run        uuid PRIMARY KEY,
    batch      bigint NOT NULL,
    written_at timestamptz NOT NULL
) WITH (fillfactor = 70);

-- Batch 0 says since when usage is counted.
INSERT INTO usage_writers VALUES ('00000000-0000-0000-0000-000000000000', 0, now());

-- Who did what with the administrative commands, and when. Commands write a row in
-- the transaction of their change.
CREATE TABLE audit_log (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at           timestamptz NOT NULL DEFAULT clock_timestamp(), -- now() is when an import began
    actor        text NOT NULL CHECK (actor <> '' AND char_length(actor) <= 128),
    role         text NOT NULL DEFAULT session_user,
    action       text NOT NULL CHECK (action <> '' AND char_length(action) <= 64),
    workspace_id uuid, -- no foreign key: what was deleted stays in the log
    key_id       uuid,
    details      jsonb NOT NULL DEFAULT '{}' CHECK (octet_length(details::text) <= 8192)
);
CREATE INDEX audit_log_by_at ON audit_log (at, id);
CREATE INDEX audit_log_by_workspace ON audit_log (workspace_id, at, id) WHERE workspace_id IS NOT NULL;

-- Rows stay as they were written. The triggers also fire for the owner, with
-- session_replication_role = replica, and for a logical subscription, which fires
-- those of rows only. Who owns the table can still drop it or its triggers: see
-- docs/SECURITY.md.
-- +goose StatementBegin
CREATE FUNCTION audit_log_is_append_only() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION 'audit_log is append-only: % is refused', tg_op USING ERRCODE = 'insufficient_privilege';
END
$$;
-- +goose StatementEnd
CREATE TRIGGER audit_log_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON audit_log
    FOR EACH STATEMENT EXECUTE FUNCTION audit_log_is_append_only();
CREATE TRIGGER audit_log_rows_append_only BEFORE UPDATE OR DELETE ON audit_log
    FOR EACH ROW EXECUTE FUNCTION audit_log_is_append_only();
ALTER TABLE audit_log ENABLE ALWAYS TRIGGER audit_log_append_only;
ALTER TABLE audit_log ENABLE ALWAYS TRIGGER audit_log_rows_append_only;
