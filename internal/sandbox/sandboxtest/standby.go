package sandboxtest

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"listedge/internal/sandbox"
)

// Standby starts a hot standby of the primary, with the primary's settings and these.
// Where both have a setting, the standby's wins.
func Standby(t testing.TB, primary *sandbox.Postgres, settings map[string]string) *sandbox.Postgres {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	p, err := startStandby(ctx, primary, Dir(t), settings)
	must(t, err)
	t.Cleanup(func() { _ = p.Stop() })
	return p
}

// startStandby copies the running server into dir and starts a hot standby there that
// streams from it. dir must not contain a server. The standby has the same databases
// and password, and another port. "recovery_min_apply_delay": "2s" makes it lag.
// Replication slots are not copied, and the standby uses none: after Stop only the folder
// is left. A standby that is stopped for long needs wal_keep_size on the primary.
func startStandby(ctx context.Context, primary *sandbox.Postgres, dir string, settings map[string]string) (*sandbox.Postgres, error) {
	account, err := sandbox.ServerAccount()
	if err != nil {
		return nil, err
	}
	u, err := url.Parse(primary.URL("postgres"))
	if err != nil {
		return nil, err
	}
	host, port, err := net.SplitHostPort(u.Host)
	if err != nil {
		return nil, err
	}
	password, _ := u.User.Password()
	passFile := filepath.Join(dir, "pgpass") // so that no list of processes shows the password
	for file, text := range map[string]string{filepath.Join(dir, "password"): password, passFile: fmt.Sprintf("%s:%s:*:postgres:%s\n", host, port, password)} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			return nil, err
		}
		if err := give(file, account); err != nil {
			return nil, err
		}
	}
	if err := give(dir, account); err != nil {
		return nil, err
	}
	backup := exec.CommandContext(ctx, filepath.Join(primary.Bin(), "pg_basebackup"), "--pgdata", filepath.Join(dir, "cluster"),
		"--write-recovery-conf", "--wal-method", "stream", "--checkpoint", "fast", "--no-password", "--no-sync",
		"--dbname", fmt.Sprintf("host=%s port=%s user=postgres passfile='%s'", host, port, passFile))
	backup.Dir, backup.SysProcAttr = dir, &syscall.SysProcAttr{Credential: account}
	if out, err := backup.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("pg_basebackup: %w: %s", err, strings.TrimSpace(string(out)))
	}
	all := map[string]string{"hot_standby": "on"}
	maps.Copy(all, primary.Options.Settings)
	maps.Copy(all, settings)
	return sandbox.StartPostgres(ctx, sandbox.PostgresOptions{Dir: dir, Settings: all, Disposable: primary.Options.Disposable})
}

// give gives a file to the account that a server runs as; nil = our own.
func give(path string, account *syscall.Credential) error {
	if account == nil {
		return nil
	}
	return os.Chown(path, int(account.Uid), int(account.Gid))
}
