package admin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"listedge/origin/apikey"
	"listedge/origin/postgres"
)

// Scopes are all scopes that exist.
var Scopes = []string{"items:read", "contacts:read"}

// Key is a key as the commands show it; Key.Key is set only by CreateKey.
type Key struct {
	ID            uuid.UUID  `json:"id"`
	WorkspaceID   uuid.UUID  `json:"workspaceId"`
	Key           string     `json:"key,omitempty"`
	Name          string     `json:"name"`
	Prefix        string     `json:"prefix"`
	Scopes        []string   `json:"scopes"`
	RatePerSecond *float64   `json:"ratePerSecond"`
	Burst         *int32     `json:"burst"`
	ExpiresAt     *time.Time `json:"expiresAt"`
	RevokedAt     *time.Time `json:"revokedAt"`
	CreatedAt     time.Time  `json:"createdAt"`
	LastUsedAt    *time.Time `json:"lastUsedAt"` // nil = never
}

const keyColumns = `id, workspace_id, name, key_prefix AS prefix, scopes, rate_per_second, burst, nullif(expires_at, 'infinity') AS expires_at, revoked_at, created_at,
	(SELECT last_used_at FROM key_last_used WHERE key_id = api_keys.id) AS last_used_at`

// NewKey says which key CreateKey makes.
type NewKey struct {
	Workspace uuid.UUID
	Name      string
	Scopes    []string       // empty = all
	Rate      *float64       // nil = the default
	Burst     *int32         // nil = the default
	ExpiresIn *time.Duration // nil = never
}

// CreateKey makes a key and returns it with its text, which is stored nowhere.
func (c *Conn) CreateKey(ctx context.Context, k NewKey) (Key, error) {
	if err := checkRate(k.Rate); err != nil {
		return Key{}, err
	}
	if len(k.Scopes) == 0 {
		k.Scopes = Scopes
	}
	for _, scope := range k.Scopes {
		if !slices.Contains(Scopes, scope) {
			return Key{}, fmt.Errorf("no such scope: %q (there are %q)", scope, Scopes)
		}
	}
	limit := apikey.LimitOf(k.Rate, k.Burst, apikey.DefaultLimit)
	text := apikey.Generate()
	hash, _ := apikey.HashOf([]byte(text))
	key, err := one[Key](ctx, c.conn, "create the key",
		`INSERT INTO api_keys (workspace_id, name, key_hash, key_prefix, scopes, rate_per_second, burst, expires_at)
		VALUES ($1, $2, $3, $4, $5, $6, $7, now() + $8) RETURNING `+keyColumns,
		k.Workspace, k.Name, hash[:], text[:apikey.VisiblePrefix], k.Scopes, limit.Rate, limit.Burst, k.ExpiresIn)
	if postgres.Code(err) == "23503" { // foreign_key_violation
		return Key{}, fmt.Errorf("workspace %s: %w", k.Workspace, ErrNotFound)
	}
	if err == nil {
		key.Key = text
	}
	return key, err
}

// Keys lists the keys of a workspace, oldest first.
func (c *Conn) Keys(ctx context.Context, workspace uuid.UUID) ([]Key, error) {
	return all[Key](ctx, c.conn, "list keys", `SELECT `+keyColumns+` FROM api_keys WHERE workspace_id = $1 ORDER BY created_at, id`, workspace)
}

// UpdateKey changes the limit; nil leaves a value as it was.
func (c *Conn) UpdateKey(ctx context.Context, id uuid.UUID, rate *float64, burst *int32) (Key, error) {
	if err := checkRate(rate); err != nil {
		return Key{}, err
	}
	return one[Key](ctx, c.conn, "update key "+id.String(),
		`UPDATE api_keys SET rate_per_second = coalesce($2, rate_per_second), burst = coalesce($3, burst) WHERE id = $1 RETURNING `+keyColumns, id, rate, burst)
}

// RevokeKey revokes a key. Every node refuses it within a second.
func (c *Conn) RevokeKey(ctx context.Context, id uuid.UUID) (Key, error) {
	return one[Key](ctx, c.conn, "revoke key "+id.String(),
		`UPDATE api_keys SET revoked_at = coalesce(least(revoked_at, now()), now()) WHERE id = $1 RETURNING `+keyColumns, id)
}

// KeyWorks says whether a key's text is accepted, and the key's workspace.
func (c *Conn) KeyWorks(ctx context.Context, text string) (workspace uuid.UUID, works bool, err error) {
	hash, ok := apikey.HashOf([]byte(text))
	if !ok {
		return workspace, false, nil
	}
	err = c.conn.QueryRow(ctx, `SELECT workspace_id FROM api_keys
		WHERE key_hash = $1 AND coalesce(revoked_at > now(), true) AND coalesce(expires_at > now(), true)`, hash[:]).Scan(&workspace)
	if errors.Is(err, pgx.ErrNoRows) {
		return workspace, false, nil
	}
	if err != nil {
		return workspace, false, fmt.Errorf("look up the key: %w", err)
	}
	return workspace, true, nil
}
