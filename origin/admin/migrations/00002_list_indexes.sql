-- What the lists read. Every index begins with the workspace and holds active
-- rows only.

-- +goose Up
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
    RETURN left(name, 80);

-- A text as search compares it, in any language and whatever the locale of the
-- database is. Lower and then upper case, because only upper case tells all
-- forms of a letter alike (Greek final sigma, German sharp s).
CREATE FUNCTION search_fold(t text) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN upper(lower(t COLLATE "und-x-icu"));

-- The searched fields of a row in one text, for one trigram index. A match in
-- it is a candidate: the page's statement compares field by field.
CREATE FUNCTION search_text(a text, b text, c text, d text) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN search_fold(coalesce(a, '') || E'\n' || coalesce(b, '') || E'\n' || coalesce(c, '') || E'\n' || coalesce(d, ''));

CREATE INDEX items_by_created_at ON items (workspace_id, created_at, id) WHERE active;
CREATE INDEX items_by_name ON items (workspace_id, (name_key(name) COLLATE name_order), id) WHERE active;
CREATE INDEX items_by_search ON items USING gin (workspace_id, search_text(name, sku, description, NULL) gin_trgm_ops) WHERE active;

CREATE INDEX contacts_by_created_at ON contacts (workspace_id, created_at, id) WHERE active;
CREATE INDEX contacts_by_name ON contacts (workspace_id, (name_key(name) COLLATE name_order), id) WHERE active;
CREATE INDEX contacts_by_search ON contacts USING gin (workspace_id, search_text(name, email, phone, tin) gin_trgm_ops) WHERE active;

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

-- +goose Down
DROP INDEX items_by_created_at, items_by_name, items_by_search, contacts_by_created_at, contacts_by_name, contacts_by_search,
    items_low_by_created_at, items_low_by_name, items_services_by_created_at, items_services_by_name,
    contacts_suppliers_by_created_at, contacts_suppliers_by_name;
DROP FUNCTION search_text, search_fold, name_key;
DROP COLLATION name_order;
