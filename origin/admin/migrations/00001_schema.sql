-- The tables, whose names other systems write, and the constraints that keep
-- out what the API could not show. No trigger, no lock, no counter: writers
-- pay for indexes and nothing else.

-- +goose Up
CREATE TABLE workspaces (
    id              uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    name            text NOT NULL CHECK (name <> ''),
    suspended_at    timestamptz,
    rate_per_second float8 CHECK (rate_per_second >= 0 AND rate_per_second < 'Infinity'),
    burst           int CHECK (burst >= 1),
    created_at      timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE api_keys (
    id              uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    workspace_id    uuid NOT NULL REFERENCES workspaces (id) ON DELETE CASCADE,
    name            text NOT NULL DEFAULT '',
    key_hash        bytea NOT NULL UNIQUE CHECK (length(key_hash) = 32),
    key_prefix      text NOT NULL,
    scopes          text[] NOT NULL CHECK (scopes <@ ARRAY['items:read', 'contacts:read']),
    rate_per_second float8 CHECK (rate_per_second >= 0 AND rate_per_second < 'Infinity'),
    burst           int CHECK (burst >= 1),
    expires_at      timestamptz,
    revoked_at      timestamptz,
    created_at      timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX api_keys_by_workspace ON api_keys (workspace_id, created_at, id);

CREATE TABLE items (
    workspace_id         uuid NOT NULL,
    id                   uuid NOT NULL DEFAULT gen_random_uuid(),
    name                 text NOT NULL CHECK (name <> ''),
    type                 text NOT NULL DEFAULT 'GOODS' CHECK (type IN ('GOODS', 'SERVICE')),
    sku                  text,
    description          text,
    unit                 text,
    image_path           text,
    preferred_contact_id uuid,
    cost_price           numeric NOT NULL DEFAULT 0 CHECK (cost_price > '-Infinity' AND cost_price < 'Infinity'),
    avg_cost             numeric NOT NULL DEFAULT 0 CHECK (avg_cost > '-Infinity' AND avg_cost < 'Infinity'),
    selling_price        numeric NOT NULL DEFAULT 0 CHECK (selling_price > '-Infinity' AND selling_price < 'Infinity'),
    taxable              bool NOT NULL DEFAULT true,
    track_stock          bool NOT NULL DEFAULT false,
    stock_on_hand        numeric NOT NULL DEFAULT 0 CHECK (stock_on_hand > '-Infinity' AND stock_on_hand < 'Infinity'),
    reorder_point        numeric CHECK (reorder_point > '-Infinity' AND reorder_point < 'Infinity'),
    usage_30             numeric NOT NULL DEFAULT 0 CHECK (usage_30 >= 0 AND usage_30 < 'Infinity'),
    active               bool NOT NULL DEFAULT true,
    created_at           timestamptz(3) NOT NULL DEFAULT now() CHECK (created_at >= '0001-01-01Z' AND created_at < '10000-01-01Z'),
    PRIMARY KEY (workspace_id, id)
);

CREATE TABLE contacts (
    workspace_id uuid NOT NULL,
    id           uuid NOT NULL DEFAULT gen_random_uuid(),
    name         text NOT NULL CHECK (name <> ''),
    email        text,
    phone        text,
    address      text,
    tin          text,
    is_customer  bool NOT NULL DEFAULT false,
    is_supplier  bool NOT NULL DEFAULT false,
    active       bool NOT NULL DEFAULT true,
    created_at   timestamptz(3) NOT NULL DEFAULT now() CHECK (created_at >= '0001-01-01Z' AND created_at < '10000-01-01Z'),
    PRIMARY KEY (workspace_id, id)
);

-- +goose Down
DROP TABLE contacts, items, api_keys, workspaces;
