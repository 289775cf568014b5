// Package admin does the work of the administrative commands on a database. It changes
// workspaces and keys, migrates the schema, makes the publication, and checks whether
// nodes can work with the server.
package admin

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"listedge/origin/apikey"
	"listedge/origin/audit"
	"listedge/origin/follower"
	"listedge/origin/postgres"
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
	SuspendedAt   *time.Time    `json:"suspendedAt"`
	RatePerSecond *float64      `json:"ratePerSecond"`
	Burst         *int32        `json:"burst"`
	Quota         *apikey.Quota `json:"quota"`
	QuotaUsed     *int64        `json:"quotaUsed,omitempty"` // in a list, if there is a quota: see quotaUsed
	CreatedAt     *time.Time    `json:"createdAt"`
}

var workspaceColumns = `id, coalesce(name, '') AS name, ` + shown("suspended_at") + `, ` + apikey.RateSQL("rate_per_second") + ` AS rate_per_second, burst,
	to_json(` + apikey.QuotaSQL + `) AS quota, ` + shown("created_at")

// quotaUsed selects how many requests of a workspace's quota are used in its present period: all
// requests but 304s and 429s. Nodes report them every few seconds.
const quotaUsed = `CASE WHEN ` + apikey.QuotaSQL + ` IS NOT NULL THEN (SELECT coalesce(sum(requests - not_modified - refused), 0)::int8 FROM key_usage
	WHERE workspace_id = workspaces.id AND hour >= date_trunc(quota_period, now(), 'UTC')) END AS quota_used`

// CreateWorkspace makes a workspace; a nil rate gives it no limit, and a nil quota none.
func (c *Conn) CreateWorkspace(ctx context.Context, name string, rate *float64, burst *int32, quota *apikey.Quota) (Workspace, error) {
	return act(ctx, c, func(tx pgx.Tx) (Workspace, audit.Act, error) {
		made, err := one[Workspace](ctx, tx, "create the workspace",
			`INSERT INTO workspaces (name, rate_per_second, burst, quota, quota_period) VALUES ($1, $2, $3, $4, $5) RETURNING `+workspaceColumns,
			append([]any{name, rate, burst}, quotaColumns(quota)...)...)
		return made, audit.Act{Action: "workspaces.create", Workspace: &made.ID, Details: map[string]any{
			"name": short(made.Name), "ratePerSecond": made.RatePerSecond, "burst": made.Burst, "quota": made.Quota}}, err
	})
}

// Workspaces lists all workspaces, oldest first.
func (c *Conn) Workspaces(ctx context.Context) ([]Workspace, error) {
	return all[Workspace](ctx, c.conn, "list workspaces", `SELECT `+workspaceColumns+`, `+quotaUsed+` FROM workspaces ORDER BY created_at, id`)
}

// UpdateWorkspace changes the limit and the quota; nil leaves a value as it was, and a zero
// quota removes it.
func (c *Conn) UpdateWorkspace(ctx context.Context, id uuid.UUID, rate *float64, burst *int32, quota *apikey.Quota) (Workspace, error) {
	return updateRow[Workspace](ctx, c, "workspaces.update", `rate_per_second = coalesce($2, rate_per_second), burst = coalesce($3, burst),
		quota = CASE WHEN $6 THEN $4 ELSE quota END, quota_period = CASE WHEN $6 THEN $5 ELSE quota_period END`,
		id, append(append([]any{rate, burst}, quotaColumns(quota)...), quota != nil)...)
}

// quotaColumns returns the values of the columns quota and quota_period; NULL = no quota.
func quotaColumns(q *apikey.Quota) []any {
	if q == nil || q.Period == "" {
		return []any{(*int64)(nil), (*string)(nil)}
	}
	return []any{q.Requests, string(q.Period)}
}

// SuspendWorkspace makes all keys of the workspace answer 403 from now on, also if that was to
// come later.
func (c *Conn) SuspendWorkspace(ctx context.Context, id uuid.UUID) (Workspace, error) {
	return updateRow[Workspace](ctx, c, "workspaces.suspend", `suspended_at = least(suspended_at, now())`, id)
}

// ResumeWorkspace undoes SuspendWorkspace.
func (c *Conn) ResumeWorkspace(ctx context.Context, id uuid.UUID) (Workspace, error) {
	return updateRow[Workspace](ctx, c, "workspaces.resume", `suspended_at = NULL`, id)
}

// workspaceExists returns ErrNotFound if no workspace has this id.
func (c *Conn) workspaceExists(ctx context.Context, id uuid.UUID) error {
	_, err := one[Workspace](ctx, c.conn, "workspace "+id.String(), `SELECT id FROM workspaces WHERE id = $1`, id)
	return err
}

// purgeSQL writes the message of a purge into the WAL, and says whether a follower will read it.
const purgeSQL = `
SELECT pg_logical_emit_message(true, $2, $3) IS NOT NULL
	AND EXISTS (SELECT FROM pg_replication_slots s JOIN pg_database d ON d.datname = current_database()
		WHERE active AND slot_name ~ ('^' || $1 || d.oid || '(_|$)'))`

var errNotFollowed = errors.New("no node follows changes, so a purge would reach none; pages expire after --cache-ttl")

// Purge makes all nodes read the workspace's pages again; nil = the pages of all workspaces.
func (c *Conn) Purge(ctx context.Context, workspace *uuid.UUID) error {
	if workspace != nil {
		if err := c.workspaceExists(ctx, *workspace); err != nil {
			return err
		}
	}
	_, err := act(ctx, c, func(tx pgx.Tx) (followed bool, done audit.Act, err error) {
		err = tx.QueryRow(ctx, purgeSQL, follower.SlotPrefix, follower.MessagePrefix, follower.PurgeMessage(workspace)).Scan(&followed)
		if err == nil && !followed {
			err = errNotFollowed
		}
		return followed, audit.Act{Action: "purge", Workspace: workspace}, err
	})
	if err != nil {
		return fmt.Errorf("purge: %w", err)
	}
	return nil
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
