package admin

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"

	"listedge/origin/audit"
)

//go:embed migrations/*.sql
var migrationFiles embed.FS

// Migration is one numbered change of the schema.
type Migration struct {
	Version   int64     `json:"version"`
	Name      string    `json:"name"`
	AppliedAt time.Time `json:"appliedAt,omitzero"` // zero = pending
}

// MigrateUp applies pending migrations, and makes the publication if the user has the
// right to. It returns what it did, or could not do, in lines for people. Several nodes may
// call it at once: an advisory lock admits one at a time, and the others then find nothing
// pending. Migrations are added to the audit log in a transaction of its own.
// goose_db_version has them in any case.
func MigrateUp(ctx context.Context, url string) (done []string, err error) {
	var names []string
	err = withGoose(ctx, url, func(p *goose.Provider) error {
		results, err := p.Up(ctx)
		if partial := (*goose.PartialError)(nil); errors.As(err, &partial) {
			results = partial.Applied
		}
		for _, r := range results {
			names = append(names, path.Base(r.Source.Path))
			done = append(done, "applied "+path.Base(r.Source.Path))
		}
		return err
	})
	if len(names) > 0 {
		c, failed := Open(ctx, url)
		if failed == nil {
			defer c.Close()
			_, failed = act(ctx, c, func(pgx.Tx) (done struct{}, a audit.Act, err error) {
				return done, audit.Act{Action: "migrate.up", Details: map[string]any{"applied": names}}, nil
			})
		}
		err = errors.Join(err, failed)
	}
	if err == nil {
		var published string
		if published, err = makePublication(ctx, url); published != "" {
			done = append(done, published)
		}
	}
	if err != nil {
		err = fmt.Errorf("migrate up: %w", err)
	}
	return done, err
}

// MigrateStatus lists all migrations, applied or pending.
func MigrateStatus(ctx context.Context, url string) (all []Migration, err error) {
	err = withGoose(ctx, url, func(p *goose.Provider) error {
		statuses, err := p.Status(ctx)
		for _, s := range statuses {
			all = append(all, Migration{Version: s.Source.Version, Name: path.Base(s.Source.Path), AppliedAt: s.AppliedAt})
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("migrate status: %w", err)
	}
	return all, nil
}

func withGoose(ctx context.Context, url string, use func(*goose.Provider) error) error {
	c, err := Open(ctx, url)
	if err != nil {
		return err
	}
	err = checkServer(ctx, c.conn)
	c.Close()
	if err != nil {
		return err
	}
	db := stdlib.OpenDB(*c.conn.Config())
	defer db.Close()
	files, _ := fs.Sub(migrationFiles, "migrations")
	locker, err := lock.NewPostgresSessionLocker(lock.WithLockTimeout(1, 300)) // a try every second, for five minutes
	if err != nil {
		return err
	}
	provider, err := goose.NewProvider(goose.DialectPostgres, db, files, goose.WithSessionLocker(locker), goose.WithDisableGlobalRegistry(true))
	if err != nil {
		return err
	}
	return use(provider)
}

// wantedVersion is the newest embedded migration.
func wantedVersion() int64 {
	files, _ := fs.ReadDir(migrationFiles, "migrations") // in their order
	newest, err := goose.NumericComponent(files[len(files)-1].Name())
	if err != nil {
		panic("BUG: a migration has no number: " + err.Error())
	}
	return newest
}
