package origin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"listedge/origin/follower"
	"listedge/origin/postgres"
)

// Scopes are all a key can have.
var Scopes = []string{"items:read", "contacts:read"}

// ErrNotFound: no workspace or key with that id.
var ErrNotFound = errors.New("not found")

// WorkspaceRow is a workspace as the commands show it.
type WorkspaceRow struct {
	ID            uuid.UUID  `json:"id"`
	Name          string     `json:"name"`
	SuspendedAt   *time.Time `json:"suspendedAt"`
	RatePerSecond *float64   `json:"ratePerSecond"`
	Burst         *int32     `json:"burst"`
	CreatedAt     time.Time  `json:"createdAt"`
}

// KeyRow is a key as the commands show it; Key is set only when just made.
type KeyRow struct {
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
}

// NewKeySpec is what `keys create` is told.
type NewKeySpec struct {
	Workspace uuid.UUID
	Name      string
	Scopes    []string       // empty = all
	Rate      *float64       // nil = the default
	Burst     *int32         // nil = the default
	ExpiresIn *time.Duration // nil = never
}

// Admin changes workspaces and keys: what the commands do.
type Admin struct{ conn *pgx.Conn }

// OpenAdmin connects for a command.
func OpenAdmin(ctx context.Context, url string) (*Admin, error) {
	conn, err := postgres.ConnectPrimary(ctx, url)
	if err != nil {
		return nil, err
	}
	return &Admin{conn: conn}, nil
}

// Close ends the connection.
func (a *Admin) Close() { _ = a.conn.Close(context.Background()) }

// CreateWorkspace makes a workspace; a nil rate gives it no bucket.
func (a *Admin) CreateWorkspace(ctx context.Context, name string, rate *float64, burst *int32) (WorkspaceRow, error) {
	return one[WorkspaceRow](ctx, a.conn, "create the workspace", createWorkspaceSQL, name, rate, burst)
}

// errUnfollowed: a purge would reach nobody.
var errUnfollowed = errors.New("nobody follows changes, so pages live --cache-ttl: there is nothing to purge, or nobody to tell")

// Purge has all nodes read the workspace's pages anew; nil = everybody's.
func (a *Admin) Purge(ctx context.Context, workspace *uuid.UUID) error {
	if workspace != nil {
		if err := a.WorkspaceExists(ctx, *workspace); err != nil {
			return err
		}
	}
	var followed bool
	err := a.conn.QueryRow(ctx, purgeSQL, follower.SlotPrefix, follower.MessagePrefix, follower.PurgeMessage(workspace)).Scan(&followed)
	if err == nil && !followed {
		err = errUnfollowed
	}
	if err != nil {
		return fmt.Errorf("purge: %w", err)
	}
	return nil
}

// Workspaces lists all workspaces, oldest first.
func (a *Admin) Workspaces(ctx context.Context) ([]WorkspaceRow, error) {
	return all[WorkspaceRow](ctx, a.conn, "list workspaces", listWorkspacesSQL)
}

// UpdateWorkspace changes the limit; what is nil stays as it was.
func (a *Admin) UpdateWorkspace(ctx context.Context, id uuid.UUID, rate *float64, burst *int32) (WorkspaceRow, error) {
	return one[WorkspaceRow](ctx, a.conn, "update workspace "+id.String(), updateWorkspaceSQL, id, rate, burst)
}

// SuspendWorkspace makes all keys of the workspace answer 403.
func (a *Admin) SuspendWorkspace(ctx context.Context, id uuid.UUID) (WorkspaceRow, error) {
	return one[WorkspaceRow](ctx, a.conn, "suspend workspace "+id.String(), suspendWorkspaceSQL, id)
}

// ResumeWorkspace undoes SuspendWorkspace.
func (a *Admin) ResumeWorkspace(ctx context.Context, id uuid.UUID) (WorkspaceRow, error) {
	return one[WorkspaceRow](ctx, a.conn, "resume workspace "+id.String(), resumeWorkspaceSQL, id)
}

// CreateKey makes a key and returns it with its text, which nobody sees again.
func (a *Admin) CreateKey(ctx context.Context, spec NewKeySpec) (KeyRow, error) {
	if len(spec.Scopes) == 0 {
		spec.Scopes = Scopes
	}
	for _, scope := range spec.Scopes {
		if !slices.Contains(Scopes, scope) {
			return KeyRow{}, fmt.Errorf("no such scope: %q (there are %q)", scope, Scopes)
		}
	}
	limit := DefaultLimit
	if spec.Rate != nil || spec.Burst != nil {
		limit = LimitOf(spec.Rate, spec.Burst, DefaultLimit)
	}
	key := NewKey()
	hash, _ := HashKey([]byte(key))
	row, err := one[KeyRow](ctx, a.conn, "create the key", createKeySQL,
		spec.Workspace, spec.Name, hash[:], key[:keyVisible], spec.Scopes, limit.Rate, limit.Burst, spec.ExpiresIn)
	if postgres.Code(err) == "23503" { // foreign_key_violation
		return KeyRow{}, fmt.Errorf("workspace %s: %w", spec.Workspace, ErrNotFound)
	}
	if err == nil {
		row.Key = key
	}
	return row, err
}

// WorkspaceExists returns ErrNotFound when it does not.
func (a *Admin) WorkspaceExists(ctx context.Context, id uuid.UUID) error {
	var there bool
	if err := a.conn.QueryRow(ctx, workspaceExistsSQL, id).Scan(&there); err != nil {
		return fmt.Errorf("look for the workspace: %w", err)
	}
	if !there {
		return fmt.Errorf("workspace %s: %w", id, ErrNotFound)
	}
	return nil
}

// Keys lists the keys of a workspace, oldest first.
func (a *Admin) Keys(ctx context.Context, workspace uuid.UUID) ([]KeyRow, error) {
	return all[KeyRow](ctx, a.conn, "list keys", listKeysSQL, workspace)
}

// UpdateKey changes the limit; what is nil stays as it was.
func (a *Admin) UpdateKey(ctx context.Context, id uuid.UUID, rate *float64, burst *int32) (KeyRow, error) {
	return one[KeyRow](ctx, a.conn, "update key "+id.String(), updateKeySQL, id, rate, burst)
}

// RevokeKey ends a key, within a second on every node.
func (a *Admin) RevokeKey(ctx context.Context, id uuid.UUID) (KeyRow, error) {
	return one[KeyRow](ctx, a.conn, "revoke key "+id.String(), revokeKeySQL, id)
}

func one[T any](ctx context.Context, conn *pgx.Conn, doing, sql string, args ...any) (T, error) {
	rows, err := all[T](ctx, conn, doing, sql, args...)
	if err == nil && len(rows) == 0 {
		err = fmt.Errorf("%s: %w", doing, ErrNotFound)
	}
	if err != nil {
		return *new(T), err
	}
	return rows[0], nil
}

func all[T any](ctx context.Context, conn *pgx.Conn, doing, sql string, args ...any) ([]T, error) {
	rows, err := conn.Query(ctx, sql, args...)
	if err == nil {
		var list []T
		if list, err = pgx.CollectRows(rows, pgx.RowToStructByNameLax[T]); err == nil {
			return list, nil
		}
	}
	return nil, fmt.Errorf("%s: %w", doing, err)
}

// KeyWorks says whether a key's text opens anything, and whose it is.
func (a *Admin) KeyWorks(ctx context.Context, key string) (workspace uuid.UUID, works bool, err error) {
	hash, ok := HashKey([]byte(key))
	if !ok {
		return workspace, false, nil
	}
	err = a.conn.QueryRow(ctx, workingKeySQL, hash[:]).Scan(&workspace)
	if errors.Is(err, pgx.ErrNoRows) {
		return workspace, false, nil
	}
	if err != nil {
		return workspace, false, fmt.Errorf("look up the key: %w", err)
	}
	return workspace, true, nil
}

// CreateDatabase makes the database unless it is there.
func CreateDatabase(ctx context.Context, url, name string) error {
	conn, err := postgres.ConnectPrimary(ctx, url)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	_, err = conn.Exec(ctx, "CREATE DATABASE "+pgx.Identifier{name}.Sanitize())
	if err != nil && postgres.Code(err) != "42P04" { // duplicate_database
		return fmt.Errorf("create database %s: %w", name, err)
	}
	return nil
}
