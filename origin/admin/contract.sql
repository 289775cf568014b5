-- The tables of the contract, which other systems write: IF NOT EXISTS, and `migrate remove` leaves them.
-- They are made where the lists are those that the program carries; a description has tables of its own.
-- Constraints refuse what the API cannot show. No trigger, no lock, no counter is put on
-- the tables: their writers pay for indexes (list.List.Indexes) and nothing else.

-- Texts have at most 64 KiB, numbers 1,000 digits before the point and after it:
-- one row does not make a page of any size. usage_30 is a JSON number, which most
-- clients read as a double: above 2^53 - 1 it would be another number for them.
CREATE TABLE IF NOT EXISTS public.items (
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

CREATE TABLE IF NOT EXISTS public.contacts (
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
