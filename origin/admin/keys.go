package admin

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"listedge/internal/lists"
	"listedge/origin/apikey"
	"listedge/origin/audit"
	"listedge/origin/postgres"
)

// Scopes are all scopes that a key may have.
var Scopes = func() (all []string) {
	for _, c := range lists.All {
		all = append(all, c.Scope())
	}
	return all
}()

// Key is a key as the commands show it.
type Key struct {
	ID            uuid.UUID  `json:"id"`
	WorkspaceID   uuid.UUID  `json:"workspaceId"`
	Key           string     `json:"key,omitempty"` // the text of the key: only CreateKey and RotateKey return it
	Name          string     `json:"name"`
	Prefix        string     `json:"prefix"`
	Scopes        []string   `json:"scopes"`
	RatePerSecond *float64   `json:"ratePerSecond"`
	Burst         *int32     `json:"burst"`
	ExpiresAt     *time.Time `json:"expiresAt"`
	RevokedAt     *time.Time `json:"revokedAt"`
	CreatedAt     *time.Time `json:"createdAt"`
	LastUsedAt    *time.Time `json:"lastUsedAt"` // nil = never
	State         KeyState   `json:"state"`
}

// KeyState says whether a key works.
type KeyState string

// The states of a key, by the clock of the database.
const (
	KeyActive  KeyState = "active" // works, perhaps until a moment that is set
	KeyExpired KeyState = "expired"
	KeyRevoked KeyState = "revoked"
)

// Ends returns when the key stops working, or stopped: it expires or is revoked, perhaps in the
// future; nil = never.
func (k Key) Ends() *time.Time {
	if k.RevokedAt != nil && (k.ExpiresAt == nil || k.RevokedAt.Before(*k.ExpiresAt)) {
		return k.RevokedAt
	}
	return k.ExpiresAt
}

// shown selects a column to which other systems may write infinity, or a year that JSON does not
// have. One in the future becomes NULL, and one in the past the earliest that JSON has.
func shown(column string) string {
	return fmt.Sprintf("CASE WHEN %[1]s < '10000-01-01Z' THEN greatest(%[1]s, '0001-01-01Z') END AS %[1]s", column)
}

// keyColumns selects a Key. Its state is of this moment, because the transaction may have waited.
var keyColumns = `id, workspace_id, coalesce(name, '') AS name, coalesce(key_prefix, '') AS prefix,
	ARRAY(SELECT scope FROM unnest(scopes) scope WHERE scope IS NOT NULL) AS scopes, ` + apikey.RateSQL("rate_per_second") + ` AS rate_per_second, burst,
	` + shown("expires_at") + `, ` + shown("revoked_at") + `, ` + shown("created_at") + `,
	CASE WHEN revoked_at <= clock_timestamp() THEN 'revoked' WHEN expires_at <= clock_timestamp() THEN 'expired'
		ELSE 'active' END AS state,
	(SELECT last_used_at FROM key_last_used WHERE key_id = api_keys.id) AS last_used_at`

// CreateKey makes a key in the workspace of k, with its name, its scopes (none = all) and its limit
// (nil = the default). It works so long (nil = for ever). Its text, which is returned, is stored nowhere.
func (c *Conn) CreateKey(ctx context.Context, k Key, expiresIn *time.Duration) (Key, error) {
	if len(k.Scopes) == 0 {
		k.Scopes = Scopes
	}
	limit := apikey.LimitOf(k.RatePerSecond, k.Burst, apikey.DefaultLimit)
	return c.newKey(ctx, func(tx pgx.Tx, hash []byte, prefix string) (Key, audit.Act, error) {
		made, err := one[Key](ctx, tx, "create the key",
			`INSERT INTO api_keys (workspace_id, name, key_hash, key_prefix, scopes, rate_per_second, burst, expires_at)
			VALUES ($1, $2, $3, $4, $5, $6, $7, now() + $8) RETURNING `+keyColumns,
			k.WorkspaceID, k.Name, hash, prefix, k.Scopes, limit.Rate, limit.Burst, expiresIn)
		if postgres.Code(err) == "23503" { // foreign_key_violation
			err = fmt.Errorf("workspace %s: %w", k.WorkspaceID, ErrNotFound)
		}
		return made, audit.Act{Action: "keys.create", Workspace: &made.WorkspaceID, Key: &made.ID, Details: map[string]any{
			"name": short(made.Name), "scopes": made.Scopes, "ratePerSecond": made.RatePerSecond, "burst": made.Burst, "expiresAt": made.ExpiresAt}}, err
	})
}

// newKey makes the text of a key, lets insert write its hash and its prefix, and returns
// the key with the text, which is stored nowhere.
func (c *Conn) newKey(ctx context.Context, insert func(tx pgx.Tx, hash []byte, prefix string) (Key, audit.Act, error)) (Key, error) {
	text := apikey.Generate()
	hash, _ := apikey.HashOf([]byte(text))
	made, err := act(ctx, c, func(tx pgx.Tx) (Key, audit.Act, error) { return insert(tx, hash[:], text[:apikey.VisiblePrefix]) })
	if err == nil {
		made.Key = text
	}
	return made, err
}

// Keys lists the keys of a workspace, oldest first; with unusedFor those that were neither used nor
// made for so long.
func (c *Conn) Keys(ctx context.Context, workspace uuid.UUID, unusedFor *time.Duration) ([]Key, error) {
	keys, err := all[Key](ctx, c.conn, "list keys", `SELECT `+keyColumns+` FROM api_keys
		WHERE workspace_id = $1 AND ($2::interval IS NULL OR created_at < now() - $2::interval
			AND NOT EXISTS (SELECT FROM key_last_used WHERE key_id = api_keys.id AND last_used_at >= now() - $2::interval))
		ORDER BY created_at, id`, workspace, unusedFor)
	if err == nil && len(keys) == 0 {
		err = c.workspaceExists(ctx, workspace)
	}
	return keys, err
}

// Key returns the key with this id, or ErrNotFound.
func (c *Conn) Key(ctx context.Context, id uuid.UUID) (Key, error) {
	return one[Key](ctx, c.conn, "show key "+id.String(), `SELECT `+keyColumns+` FROM api_keys WHERE id = $1`, id)
}

// working returns the key with this id, or an error if it is expired or revoked.
func working(ctx context.Context, conn querier, doing string, id uuid.UUID) (Key, error) {
	k, err := one[Key](ctx, conn, doing, `SELECT `+keyColumns+` FROM api_keys WHERE id = $1`, id)
	if err == nil && k.State != KeyActive {
		err = fmt.Errorf("%s: it is %s; make a new one with `listedge keys create`", doing, k.State)
	}
	return k, err
}

// UpdateKey changes the limit of a key that works; nil leaves a value as it was.
func (c *Conn) UpdateKey(ctx context.Context, id uuid.UUID, rate *float64, burst *int32) (Key, error) {
	if k, err := working(ctx, c.conn, "update key "+id.String(), id); err != nil {
		return k, err
	}
	return updateRow[Key](ctx, c, "keys.update", `rate_per_second = coalesce($2, rate_per_second), burst = coalesce($3, burst)`, id, rate, burst)
}

// RevokeKey revokes a key. Every node refuses it within a second.
func (c *Conn) RevokeKey(ctx context.Context, id uuid.UUID) (Key, error) {
	return updateRow[Key](ctx, c, "keys.revoke", `revoked_at = least(revoked_at, now())`, id)
}
