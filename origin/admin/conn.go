// Package admin does the work of the administrative commands on a database. It changes
// workspaces and keys, migrates the schema, makes the publication, and checks whether
// nodes can work with the server.
package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"listedge/origin/apikey"
	"listedge/origin/audit"
	"listedge/origin/postgres"
	"listedge/origin/usage"
)

// ErrNotFound: no workspace or key has that id.
var ErrNotFound = errors.New("not found")

// Conn is a command's connection to the primary.
type Conn struct{ conn *pgx.Conn }

// Open connects to the primary at the URL.
func Open(ctx context.Context, url string) (*Conn, error) {
	conn, err := postgres.ConnectPrimary(ctx, url)
	if err != nil {
		return nil, err
	}
	return &Conn{conn}, nil
}

// Close ends the connection.
func (c *Conn) Close() { _ = c.conn.Close(context.Background()) }

// Workspace is a workspace as the commands show it.
type Workspace struct {
	ID            uuid.UUID     `json:"id"`
	Name          string        `json:"name"`
	Tenant        string        `json:"tenant"` // whose rows of lists it sees
	SuspendedAt   *time.Time    `json:"suspendedAt"`
	RatePerSecond *float64      `json:"ratePerSecond"`
	Burst         *int32        `json:"burst"`
	Quota         *apikey.Quota `json:"quota"`
	QuotaUsed     *int64        `json:"quotaUsed,omitempty"` // in a list, if there is a quota: see quotaUsed
	CreatedAt     *time.Time    `json:"createdAt"`
}

var workspaceColumns = `id, coalesce(name, '') AS name, ` + apikey.TenantSQL + ` AS tenant, ` + shown("suspended_at") + `,
	` + apikey.RateSQL("rate_per_second") + ` AS rate_per_second, burst, to_json(` + apikey.QuotaSQL + `) AS quota, ` + shown("created_at")

// quotaUsed selects how many requests of a workspace's quota are used in its present period: all
// requests but 304s and 429s. Nodes report them every few seconds.
const quotaUsed = `CASE WHEN ` + apikey.QuotaSQL + ` IS NOT NULL THEN (SELECT coalesce(sum(requests - not_modified - refused), 0)::int8 FROM listedge_key_usage
	WHERE workspace_id = workspaces.id AND hour >= date_trunc(quota_period, now(), 'UTC')) END AS quota_used`

// CreateWorkspace makes a workspace; a nil rate gives it no limit, and a nil quota none. It sees the rows of
// lists that are the tenant's, as Postgres prints it; an empty tenant is the workspace's id.
func (c *Conn) CreateWorkspace(ctx context.Context, name string, rate *float64, burst *int32, quota *apikey.Quota, tenant string) (Workspace, error) {
	requests, period := quotaColumns(quota)
	return act(ctx, c, func(tx pgx.Tx) (Workspace, audit.Act, error) {
		made, err := one[Workspace](ctx, tx, "create the workspace",
			`INSERT INTO workspaces (name, rate_per_second, burst, quota, quota_period, tenant) VALUES ($1, $2, $3, $4, $5, nullif($6, '')) RETURNING `+workspaceColumns,
			name, rate, burst, requests, period, tenant)
		err = takenTenant(err, tenant)
		return made, audit.Act{Action: "workspaces.create", Workspace: &made.ID, Details: map[string]any{
			"name": short(made.Name), "tenant": made.Tenant, "ratePerSecond": made.RatePerSecond, "burst": made.Burst, "quota": made.Quota}}, err
	})
}

// Workspaces lists all workspaces, oldest first.
func (c *Conn) Workspaces(ctx context.Context) ([]Workspace, error) {
	return all[Workspace](ctx, c.conn, "list workspaces", `SELECT `+workspaceColumns+`, `+quotaUsed+` FROM workspaces ORDER BY created_at, id`)
}

// takenTenant says of an error whether it is that another workspace has the tenant.
func takenTenant(err error, tenant string) error {
	if postgres.Code(err) == "23505" { // unique_violation
		return fmt.Errorf("another workspace has the tenant %q", tenant)
	}
	return err
}

// UpdateWorkspace changes the limit, the quota and the tenant; nil and an empty tenant leave a value as it was, and
// a zero quota removes it.
func (c *Conn) UpdateWorkspace(ctx context.Context, id uuid.UUID, rate *float64, burst *int32, quota *apikey.Quota, tenant string) (Workspace, error) {
	requests, period := quotaColumns(quota)
	w, err := updateRow[Workspace](ctx, c, workspaceTable, "workspaces.update", `rate_per_second = coalesce($2, rate_per_second), burst = coalesce($3, burst),
		quota = CASE WHEN $6 THEN $4 ELSE quota END, quota_period = CASE WHEN $6 THEN $5 ELSE quota_period END,
		tenant = coalesce(nullif($7, ''), tenant)`,
		id, rate, burst, requests, period, quota != nil, tenant)
	return w, takenTenant(err, tenant)
}

// quotaColumns returns the values of the columns quota and quota_period; nil = no quota.
func quotaColumns(q *apikey.Quota) (requests *int64, period *string) {
	if q == nil || q.Period == "" {
		return nil, nil
	}
	return &q.Requests, (*string)(&q.Period)
}

// SuspendWorkspace makes all keys of the workspace answer 403 from now on, also if that was to
// come later.
func (c *Conn) SuspendWorkspace(ctx context.Context, id uuid.UUID) (Workspace, error) {
	return updateRow[Workspace](ctx, c, workspaceTable, "workspaces.suspend", `suspended_at = least(suspended_at, now())`, id)
}

// ResumeWorkspace undoes SuspendWorkspace.
func (c *Conn) ResumeWorkspace(ctx context.Context, id uuid.UUID) (Workspace, error) {
	return updateRow[Workspace](ctx, c, workspaceTable, "workspaces.resume", `suspended_at = NULL`, id)
}

// workspace returns the workspace with this id, or ErrNotFound.
func (c *Conn) workspace(ctx context.Context, id uuid.UUID) (Workspace, error) {
	return one[Workspace](ctx, c.conn, "workspace "+id.String(), `SELECT `+workspaceColumns+` FROM workspaces WHERE id = $1`, id)
}

// short cuts a name for the audit log, whose table bounds its rows.
func short(name string) string { return name[:min(len(name), 200)] }

// one runs a statement that returns one row. No row means that the id does not exist:
// ErrNotFound.
func one[T any](ctx context.Context, conn querier, doing, sql string, args ...any) (row T, err error) {
	rows, err := all[T](ctx, conn, doing, sql, args...)
	if err == nil && len(rows) == 0 {
		err = fmt.Errorf("%s: %w", doing, ErrNotFound)
	}
	if err != nil {
		return row, err
	}
	return rows[0], nil
}

// all runs a statement and returns its rows. doing is for the error.
func all[T any](ctx context.Context, conn querier, doing, sql string, args ...any) ([]T, error) {
	rows, _ := conn.Query(ctx, sql, args...) // the rows have the error
	list, err := pgx.CollectRows(rows, pgx.RowToStructByNameLax[T])
	if err != nil {
		return nil, fmt.Errorf("%s: %w", doing, postgres.WithSchemaHint(err))
	}
	return list, nil
}

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
	(SELECT last_used_at FROM listedge_key_last_used WHERE key_id = api_keys.id) AS last_used_at`

// CreateKey makes a key in the workspace of k, with its name, its scopes and its limit
// (nil = the default). It works so long (nil = for ever). Its text, which is returned, is stored nowhere.
func (c *Conn) CreateKey(ctx context.Context, k Key, expiresIn *time.Duration) (Key, error) {
	limit := apikey.LimitOf(k.RatePerSecond, k.Burst, apikey.DefaultLimit)
	return c.newKey(ctx, func(tx pgx.Tx, hash []byte, prefix string) (Key, audit.Act, error) {
		made, err := one[Key](ctx, tx, "create the key",
			`INSERT INTO api_keys (workspace_id, name, key_hash, key_prefix, scopes, rate_per_second, burst, expires_at)
			VALUES ($1, $2, $3, $4, coalesce($5::text[], '{}'), $6, $7, now() + $8) RETURNING `+keyColumns,
			k.WorkspaceID, k.Name, hash, prefix, k.Scopes, limit.Rate, limit.Burst, expiresIn)
		if postgres.Code(err) == "23503" { // foreign_key_violation
			err = fmt.Errorf("workspace %s: %w", k.WorkspaceID, ErrNotFound)
		}
		return made, audit.Act{Action: "keys.create", Workspace: &made.WorkspaceID, Key: &made.ID, Details: map[string]any{
			"name": short(made.Name), "scopes": made.Scopes, "ratePerSecond": made.RatePerSecond, "burst": made.Burst, "expiresAt": made.ExpiresAt}}, err
	})
}

// ImportedKey is a key of another maker, of which only the hash is known.
type ImportedKey struct {
	Hash      apikey.Hash `json:"hash"`
	Name      string      `json:"name"`
	Scopes    []string    `json:"scopes"`
	Rate      float64     `json:"rate"`
	Burst     int64       `json:"burst"`
	ExpiresAt *time.Time  `json:"expires"` // nil = never
}

// ImportKeys makes keys of a workspace, all of one form, or none of them. Every node knows them within a second.
func (c *Conn) ImportKeys(ctx context.Context, workspace uuid.UUID, form apikey.Form, keys []ImportedKey) ([]Key, error) {
	rows, err := json.Marshal(keys)
	if err != nil {
		return nil, fmt.Errorf("import keys: %w", err)
	}
	return actAll(ctx, c, func(tx pgx.Tx) (made []Key, done []audit.Act, err error) {
		made, err = all[Key](ctx, tx, "import keys",
			`INSERT INTO api_keys (workspace_id, name, key_hash, key_prefix, scopes, rate_per_second, burst, expires_at)
			SELECT $1, name, decode(hash, 'hex'), $2, coalesce(scopes, '{}'), rate, burst, expires
			FROM jsonb_to_recordset($3::jsonb) k (name text, hash text, scopes text[], rate float8, burst int, expires timestamptz)
			RETURNING `+keyColumns, workspace, apikey.ImportedPrefix, string(rows))
		switch postgres.Code(err) {
		case "23503": // foreign_key_violation
			err = fmt.Errorf("workspace %s: %w", workspace, ErrNotFound)
		case "23505": // unique_violation
			err = errors.New("another command has stored one of the hashes meanwhile: run this one again")
		}
		forms := 0
		if err == nil {
			forms, err = addForm(ctx, tx, form)
		}
		if err == nil && forms > apikey.MaxForms {
			err = fmt.Errorf("keys of %d forms (--hash and --behind) were imported, and there is no room for another: "+
				"for each a look-up asks for one hash more", forms-1)
		}
		for i := range made {
			k := &made[i]
			done = append(done, audit.Act{Action: "keys.import", Workspace: &k.WorkspaceID, Key: &k.ID, Details: map[string]any{"name": short(k.Name),
				"scopes": k.Scopes, "ratePerSecond": k.RatePerSecond, "burst": k.Burst, "expiresAt": k.ExpiresAt, "hash": form.Digest, "behind": form.Behind}})
		}
		return made, done, err
	})
}

// addForm adds the form of imported keys if it is new, and returns how many there are.
func addForm(ctx context.Context, tx pgx.Tx, form apikey.Form) (forms int, err error) {
	_, err = tx.Exec(ctx, `INSERT INTO listedge_key_forms (digest, behind) VALUES ($1, $2) ON CONFLICT DO NOTHING`, form.Digest, form.Behind)
	if err == nil {
		err = tx.QueryRow(ctx, `SELECT count(*) FROM listedge_key_forms`).Scan(&forms)
	}
	if err != nil {
		return 0, fmt.Errorf("write the form of the keys: %w", postgres.WithSchemaHint(err))
	}
	return forms, nil
}

// Stored returns those of the hashes by which keys are stored.
func (c *Conn) Stored(ctx context.Context, hashes []apikey.Hash) (map[apikey.Hash]bool, error) {
	var wanted [][]byte
	for i := range hashes {
		wanted = append(wanted, hashes[i][:])
	}
	rows, _ := c.conn.Query(ctx, `SELECT key_hash FROM api_keys WHERE key_hash = ANY ($1)`, wanted)
	stored, found := map[apikey.Hash]bool{}, []byte(nil)
	_, err := pgx.ForEachRow(rows, []any{&found}, func() error { stored[apikey.Hash(found)] = true; return nil })
	if err != nil {
		return nil, fmt.Errorf("look for the hashes: %w", postgres.WithSchemaHint(err))
	}
	return stored, nil
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
			AND NOT EXISTS (SELECT FROM listedge_key_last_used WHERE key_id = api_keys.id AND last_used_at >= now() - $2::interval))
		ORDER BY created_at, id`, workspace, unusedFor)
	if err == nil && len(keys) == 0 {
		_, err = c.workspace(ctx, workspace)
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
	return updateRow[Key](ctx, c, keyTable, "keys.update", `rate_per_second = coalesce($2, rate_per_second), burst = coalesce($3, burst)`, id, rate, burst)
}

// RevokeKey revokes a key. Every node refuses it within a second.
func (c *Conn) RevokeKey(ctx context.Context, id uuid.UUID) (Key, error) {
	return updateRow[Key](ctx, c, keyTable, "keys.revoke", `revoked_at = least(revoked_at, now())`, id)
}

// Rotated is a new key that replaces another.
type Rotated struct {
	Key
	Replaces Key `json:"replaces"` // the old key, after the rotation
}

// RotateKey makes a key with the workspace, name, scopes and limit of the old one, which then
// expires after the overlap, if not sooner. With no expiresIn the new key works as long as
// the old one would have, so that a rotation alone extends nothing.
func (c *Conn) RotateKey(ctx context.Context, id uuid.UUID, overlap time.Duration, expiresIn *time.Duration) (Rotated, error) {
	doing := "rotate key " + id.String()
	var before, after Key
	made, err := c.newKey(ctx, func(tx pgx.Tx, hash []byte, prefix string) (made Key, done audit.Act, err error) {
		// The lock comes first: a statement that waits for it may have read the clock before.
		_, err = tx.Exec(ctx, `SELECT FROM api_keys WHERE id = $1 FOR NO KEY UPDATE`, id)
		if err != nil {
			return made, done, fmt.Errorf("%s: %w", doing, postgres.WithSchemaHint(err))
		}
		before, err = working(ctx, tx, doing, id)
		if err != nil {
			return made, done, err
		}
		made, err = one[Key](ctx, tx, doing,
			`INSERT INTO api_keys (workspace_id, name, key_hash, key_prefix, scopes, rate_per_second, burst, expires_at)
			SELECT workspace_id, name, $2, $3, scopes, rate_per_second, burst, coalesce(clock_timestamp() + $4::interval, least(expires_at, revoked_at))
			FROM api_keys WHERE id = $1 RETURNING `+keyColumns, id, hash, prefix, expiresIn)
		if err == nil && made.State != KeyActive {
			err = fmt.Errorf("%s: the new key would have ended already", doing)
		}
		if err == nil {
			after, err = one[Key](ctx, tx, doing,
				`UPDATE api_keys SET expires_at = least(expires_at, clock_timestamp() + $2::interval) WHERE id = $1 RETURNING `+keyColumns, id, overlap)
		}
		done = audit.Act{Action: "keys.rotate", Workspace: &before.WorkspaceID, Key: &before.ID, Details: changes(
			map[string]any{"expiresAt": before.ExpiresAt}, map[string]any{"expiresAt": after.ExpiresAt})}
		done.Details[audit.NewKey] = made.ID
		return made, done, err
	})
	if err != nil {
		return Rotated{}, err
	}
	return Rotated{Key: made, Replaces: after}, nil
}

// KeyUse is what one key was used for. The name and the prefix of a key that was deleted
// are empty.
type KeyUse struct {
	ID     uuid.UUID `json:"id"`
	Name   string    `json:"name"`
	Prefix string    `json:"prefix"`
	usage.Counts
	LastUsedAt *time.Time `json:"lastUsedAt"` // nil = not known
}

// Usage is what the keys of a workspace were used for in a period.
type Usage struct {
	WorkspaceID uuid.UUID     `json:"workspaceId"`
	Since       time.Time     `json:"since"` // the beginning of an hour
	Until       time.Time     `json:"until"`
	Keys        []KeyUse      `json:"keys"` // those that were used, most requests first
	Totals      usage.Counts  `json:"totals"`
	Quota       *apikey.Quota `json:"quota"`
	QuotaUsed   *int64        `json:"quotaUsed"` // in the quota's present period: see quotaUsed
}

// workspaceNow is a workspace, and the database's clock.
type workspaceNow struct {
	Workspace
	Now time.Time
}

// Usage returns the usage of a workspace's keys that nodes have written so far. The period begins
// with the hour that lies since back.
func (c *Conn) Usage(ctx context.Context, workspace uuid.UUID, since time.Duration) (u Usage, err error) {
	w, err := one[workspaceNow](ctx, c.conn, "workspace "+workspace.String(),
		`SELECT `+workspaceColumns+`, `+quotaUsed+`, now() FROM workspaces WHERE id = $1`, workspace)
	if err != nil {
		return u, err
	}
	u.WorkspaceID, u.Quota, u.QuotaUsed, u.Until = workspace, w.Quota, w.QuotaUsed, w.Now.UTC()
	u.Since = u.Until.Add(-since).Truncate(time.Hour)
	u.Keys, err = all[KeyUse](ctx, c.conn, "read the usage of keys",
		`SELECT u.key_id AS id, coalesce(k.name, '') AS name, coalesce(k.key_prefix, '') AS prefix, sum(requests)::int8 AS requests, sum(refused)::int8 AS refused,
			sum(not_modified)::int8 AS not_modified, sum(bypassed)::int8 AS bypassed, sum(bytes)::int8 AS bytes, sum(queries)::int8 AS queries, l.last_used_at
		FROM listedge_key_usage u LEFT JOIN api_keys k ON k.id = u.key_id LEFT JOIN listedge_key_last_used l ON l.key_id = u.key_id
		WHERE u.workspace_id = $1 AND u.hour >= $2 GROUP BY u.key_id, k.name, k.key_prefix, l.last_used_at
		ORDER BY sum(requests) DESC, u.key_id`, workspace, u.Since)
	for i := range u.Keys {
		u.Totals.Add(u.Keys[i].Counts)
	}
	return u, err
}

// UsageSince returns since when nodes count usage.
func (c *Conn) UsageSince(ctx context.Context) (since time.Time, err error) {
	err = c.conn.QueryRow(ctx, `SELECT written_at FROM listedge_usage_writers WHERE batch = 0`).Scan(&since)
	if err != nil {
		err = fmt.Errorf("read since when usage is counted: %w", postgres.WithSchemaHint(err))
	}
	return since, err
}

// act is actAll for a change that is one act.
func act[T any](ctx context.Context, c *Conn, do func(tx pgx.Tx) (T, audit.Act, error)) (T, error) {
	return actAll(ctx, c, func(tx pgx.Tx) (T, []audit.Act, error) {
		made, done, err := do(tx)
		return made, []audit.Act{done}, err
	})
}

// actAll makes a change and adds it to the audit log, in one transaction: both are
// committed, or neither. do makes the change and says what it did. Every method of Conn
// that changes something calls act or actAll.
func actAll[T any](ctx context.Context, c *Conn, do func(tx pgx.Tx) (T, []audit.Act, error)) (T, error) {
	var none T
	tx, err := c.conn.Begin(ctx)
	if err != nil {
		return none, fmt.Errorf("begin: %w", err)
	}
	defer func() { _ = tx.Rollback(ctx) }() // nothing, after a commit; if it fails, pgx closes the connection
	made, done, err := do(tx)
	if err != nil {
		return none, err
	}
	if err := audit.Write(ctx, tx, done...); err != nil {
		return none, err
	}
	if err := tx.Commit(ctx); err != nil {
		return none, fmt.Errorf("commit: %w", err)
	}
	return made, nil
}

// table is one whose rows commands change.
type table struct {
	name     string
	columns  string // selects a row as commands show it
	subject  string // selects the ids by which listedge_audit_log names a row, as workspace and key; NULL = has none
	settable string // selects the columns that commands change, by their names in JSON
}

var (
	workspaceTable = table{"workspaces", workspaceColumns, "id AS workspace, NULL::uuid AS key", `'tenant', ` + apikey.TenantSQL + `,
		'suspendedAt', suspended_at, 'ratePerSecond', rate_per_second,
		'burst', burst, 'quota', CASE WHEN quota IS NOT NULL THEN jsonb_build_object('requests', quota, 'period', quota_period) END`}
	keyTable = table{"api_keys", keyColumns, "workspace_id AS workspace, id AS key",
		`'ratePerSecond', rate_per_second, 'burst', burst, 'expiresAt', expires_at, 'revokedAt', revoked_at`}
)

// storedRow is a row as the database has it, whatever values other systems have written.
type storedRow struct {
	Workspace, Key *uuid.UUID
	Settable       map[string]any
}

// updateRow changes one row, and then returns it as it is: that it cannot be shown must not keep
// a key from being revoked. In set $1 is the id, and further arguments begin with $2. The audit
// log gets each column that changed.
func updateRow[T any](ctx context.Context, c *Conn, t table, action, set string, id uuid.UUID, args ...any) (row T, err error) {
	doing := strings.ReplaceAll(action, ".", " ") + " " + id.String()
	columns := t.subject + ", jsonb_build_object(" + t.settable + ") AS settable"
	_, err = act(ctx, c, func(tx pgx.Tx) (after storedRow, done audit.Act, err error) {
		before, err := one[storedRow](ctx, tx, doing, `SELECT `+columns+` FROM `+t.name+` WHERE id = $1 FOR NO KEY UPDATE`, id)
		if err == nil {
			after, err = one[storedRow](ctx, tx, doing, `UPDATE `+t.name+` SET `+set+` WHERE id = $1 RETURNING `+columns, append([]any{id}, args...)...)
		}
		return after, audit.Act{Action: action, Workspace: after.Workspace, Key: after.Key, Details: changes(before.Settable, after.Settable)}, err
	})
	if err != nil {
		return row, err
	}
	return one[T](ctx, c.conn, "it is done, but what came of it cannot be shown", `SELECT `+t.columns+` FROM `+t.name+` WHERE id = $1`, id)
}

// changes returns what two rows do not have in common.
func changes(before, after map[string]any) map[string]any {
	details := map[string]any{}
	for name, to := range after {
		if from := before[name]; !reflect.DeepEqual(from, to) {
			details[name] = audit.Change{From: from, To: to}
		}
	}
	return details
}

// Audit returns the newest acts that the filter selects, newest first. Those of a key include the
// rotation that made it in the place of another key.
func (c *Conn) Audit(ctx context.Context, f audit.Filter) ([]audit.Entry, error) {
	return all[audit.Entry](ctx, c.conn, "read the audit log", `SELECT id, at, actor, role, action, workspace_id, key_id, details FROM public.listedge_audit_log
		WHERE ($1::uuid IS NULL OR workspace_id = $1) AND ($2::uuid IS NULL OR key_id = $2 OR details ->> '`+audit.NewKey+`' = $2::text)
			AND ($3::interval IS NULL OR at >= now() - $3::interval)
		ORDER BY at DESC, id DESC LIMIT $4`, f.Workspace, f.Key, f.Since, f.Limit)
}
