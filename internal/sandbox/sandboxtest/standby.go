package sandboxtest

import (
	"context"
	"fmt"
	"maps"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"listedge/internal/sandbox"
)

// Standby starts a hot standby of the primary, with the primary's settings and these; where
// both have a setting, the standby's wins. It has the same databases and password, and
// another port. "recovery_min_apply_delay": "2s" makes it lag. It uses no replication slot, so
// a standby that is stopped for long needs wal_keep_size on the primary.
func Standby(t testing.TB, primary *sandbox.Postgres, settings map[string]string) *sandbox.Postgres {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	dir := Dir(t)
	account, err := sandbox.ServerAccount()
	must(t, err)
	must(t, sandbox.Give(dir, account))
	u, err := url.Parse(primary.URL("postgres"))
	must(t, err)
	password, _ := u.User.Password()
	passFile := filepath.Join(dir, "pgpass") // so that no list of processes shows the password
	for file, text := range map[string]string{filepath.Join(dir, "password"): password, passFile: "*:*:*:postgres:" + password + "\n"} {
		must(t, os.WriteFile(file, []byte(text), 0o600))
		must(t, sandbox.Give(file, account))
	}
	backup := exec.CommandContext(ctx, filepath.Join(primary.Bin(), "pg_basebackup"), "--pgdata", filepath.Join(dir, "cluster"),
		"--write-recovery-conf", "--wal-method", "stream", "--checkpoint", "fast", "--no-password", "--no-sync",
		"--dbname", fmt.Sprintf("host=%s port=%s user=postgres passfile='%s'", u.Hostname(), u.Port(), passFile))
	backup.Dir, backup.SysProcAttr = dir, &syscall.SysProcAttr{Credential: account}
	if out, err := backup.CombinedOutput(); err != nil {
		t.Fatalf("pg_basebackup: %v: %s", err, out)
	}
	all := map[string]string{"hot_standby": "on"}
	maps.Copy(all, primary.Options.Settings)
	maps.Copy(all, settings)
	return startPostgres(t, sandbox.PostgresOptions{Dir: dir, Settings: all, Disposable: primary.Options.Disposable})
}
