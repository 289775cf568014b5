-- Bounds of what a row holds: texts of 64 KiB, numbers of 1,000 digits before
-- the point and after it, and a key's scopes. Beyond them one row made a page
-- of any size. NOT VALID: rows that are there stay, and are not looked at; a new
-- one, and one that is written again, must keep to them. See docs/UPGRADING.md.

-- +goose Up
-- Who waits for a lock has all others wait behind it, so the tables are tried
-- again and again for a minute, each time for an instant.
-- +goose StatementBegin
DO $$
BEGIN
    FOR attempt IN 1..60 LOOP
        BEGIN
            SET LOCAL lock_timeout = '200ms';
            ALTER TABLE items
                ADD CONSTRAINT items_name_size CHECK (octet_length(name) <= 65536) NOT VALID,
                ADD CONSTRAINT items_sku_size CHECK (octet_length(sku) <= 65536) NOT VALID,
                ADD CONSTRAINT items_description_size CHECK (octet_length(description) <= 65536) NOT VALID,
                ADD CONSTRAINT items_unit_size CHECK (octet_length(unit) <= 65536) NOT VALID,
                ADD CONSTRAINT items_image_path_size CHECK (octet_length(image_path) <= 65536) NOT VALID,
                ADD CONSTRAINT items_cost_price_size CHECK (abs(cost_price) < 1e1000 AND scale(cost_price) <= 1000) NOT VALID,
                ADD CONSTRAINT items_avg_cost_size CHECK (abs(avg_cost) < 1e1000 AND scale(avg_cost) <= 1000) NOT VALID,
                ADD CONSTRAINT items_selling_price_size CHECK (abs(selling_price) < 1e1000 AND scale(selling_price) <= 1000) NOT VALID,
                ADD CONSTRAINT items_stock_on_hand_size CHECK (abs(stock_on_hand) < 1e1000 AND scale(stock_on_hand) <= 1000) NOT VALID,
                ADD CONSTRAINT items_reorder_point_size CHECK (abs(reorder_point) < 1e1000 AND scale(reorder_point) <= 1000) NOT VALID,
                ADD CONSTRAINT items_usage_30_size CHECK (scale(usage_30) <= 1000) NOT VALID;

            ALTER TABLE contacts
                ADD CONSTRAINT contacts_name_size CHECK (octet_length(name) <= 65536) NOT VALID,
                ADD CONSTRAINT contacts_email_size CHECK (octet_length(email) <= 65536) NOT VALID,
                ADD CONSTRAINT contacts_phone_size CHECK (octet_length(phone) <= 65536) NOT VALID,
                ADD CONSTRAINT contacts_address_size CHECK (octet_length(address) <= 65536) NOT VALID,
                ADD CONSTRAINT contacts_tin_size CHECK (octet_length(tin) <= 65536) NOT VALID;

            ALTER TABLE workspaces
                ADD CONSTRAINT workspaces_name_size CHECK (octet_length(name) <= 65536) NOT VALID;

            ALTER TABLE api_keys
                ADD CONSTRAINT api_keys_name_size CHECK (octet_length(name) <= 65536) NOT VALID,
                ADD CONSTRAINT api_keys_key_prefix_size CHECK (octet_length(key_prefix) <= 65536) NOT VALID,
                ADD CONSTRAINT api_keys_scopes_size CHECK (cardinality(scopes) <= 16) NOT VALID;
            RETURN;
        EXCEPTION WHEN lock_not_available THEN -- what was got is let go
            IF attempt = 60 THEN
                RAISE;
            END IF;
            PERFORM pg_sleep(0.8);
        END;
    END LOOP;
END
$$;
-- +goose StatementEnd

-- +goose Down
ALTER TABLE items
    DROP CONSTRAINT items_name_size, DROP CONSTRAINT items_sku_size, DROP CONSTRAINT items_description_size,
    DROP CONSTRAINT items_unit_size, DROP CONSTRAINT items_image_path_size, DROP CONSTRAINT items_cost_price_size,
    DROP CONSTRAINT items_avg_cost_size, DROP CONSTRAINT items_selling_price_size, DROP CONSTRAINT items_stock_on_hand_size,
    DROP CONSTRAINT items_reorder_point_size, DROP CONSTRAINT items_usage_30_size;
ALTER TABLE contacts
    DROP CONSTRAINT contacts_name_size, DROP CONSTRAINT contacts_email_size, DROP CONSTRAINT contacts_phone_size,
    DROP CONSTRAINT contacts_address_size, DROP CONSTRAINT contacts_tin_size;
ALTER TABLE workspaces DROP CONSTRAINT workspaces_name_size;
ALTER TABLE api_keys DROP CONSTRAINT api_keys_name_size, DROP CONSTRAINT api_keys_key_prefix_size, DROP CONSTRAINT api_keys_scopes_size;
