package sandbox

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
)

// StartStandby copies the running server into dir and starts a hot standby there that
// streams from it. dir must not contain a server. The standby has the same databases
// and password, and another port. Its settings are the primary's, overridden by
// settings ("recovery_min_apply_delay": "2s" makes it lag). Replication slots are not
// copied, and the standby uses none: after Stop only the folder is left. A standby that
// is stopped for long needs wal_keep_size on the primary.
func (p *Postgres) StartStandby(ctx context.Context, dir string, settings map[string]string) (*Postgres, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("%w %s: %w", ErrDataFolder, dir, err)
	}
	all := map[string]string{"hot_standby": "on"}
	maps.Copy(all, p.options.Settings)
	maps.Copy(all, settings)
	s := &Postgres{bin: p.bin, as: p.as, password: p.password,
		options: PostgresOptions{Dir: dir, Settings: all, Disposable: p.options.Disposable}}
	if err := prepareFolder(dir, s.as); err != nil {
		return nil, err
	}
	if err := s.copyFrom(ctx, p); err != nil {
		return nil, err
	}
	return s, s.start(ctx)
}

// copyFrom makes the standby's data folder from a base backup of the running primary.
func (p *Postgres) copyFrom(ctx context.Context, primary *Postgres) error {
	if err := p.writeSecret(p.passwordFile(), p.password); err != nil {
		return err
	}
	// The password is in a file, so that no list of processes shows it.
	passFile := filepath.Join(p.options.Dir, "pgpass")
	if err := p.writeSecret(passFile, fmt.Sprintf("127.0.0.1:%s:*:postgres:%s\n", primary.port, p.password)); err != nil {
		return err
	}
	args := []string{"--pgdata", p.cluster(), "--write-recovery-conf", "--wal-method", "stream", "--checkpoint", "fast", "--no-password",
		"--dbname", fmt.Sprintf("host=127.0.0.1 port=%s user=postgres passfile='%s'", primary.port, passFile)}
	if p.options.Disposable {
		args = append(args, "--no-sync")
	}
	return run(ctx, p.as, p.options.Dir, filepath.Join(p.bin, "pg_basebackup"), args...)
}
