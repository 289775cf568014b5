package sandboxtest

import (
	"maps"
	"net/url"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"listedge/internal/sandbox"
)

// Standby starts a hot standby of the primary, with the primary's settings and these; where
// both have a setting, the standby's wins. It has the same databases and password, and
// another port. "recovery_min_apply_delay": "2s" makes it lag. It uses no replication slot, so
// a standby that is stopped for long needs wal_keep_size on the primary. Both are Disposable:
// they ask each other for no password.
func Standby(t testing.TB, primary *sandbox.Postgres, settings map[string]string) *sandbox.Postgres {
	t.Helper()
	dir := Dir(t)
	account, err := sandbox.ServerAccount()
	must(t, err)
	must(t, sandbox.Give(dir, account))
	u, err := url.Parse(primary.URL("postgres"))
	must(t, err)
	password, _ := u.User.Password()
	must(t, sandbox.WriteFile(filepath.Join(dir, "password"), password, account))
	backup := exec.CommandContext(t.Context(), filepath.Join(primary.Bin, "pg_basebackup"), "--pgdata", filepath.Join(dir, "cluster"),
		"--write-recovery-conf", "--wal-method", "stream", "--checkpoint", "fast", "--no-password", "--no-sync",
		"--dbname", "host="+u.Hostname()+" port="+u.Port()+" user=postgres")
	backup.Dir, backup.SysProcAttr = dir, &syscall.SysProcAttr{Credential: account}
	if out, err := backup.CombinedOutput(); err != nil {
		t.Fatalf("pg_basebackup: %v: %s", err, out)
	}
	all := map[string]string{"hot_standby": "on"}
	maps.Copy(all, primary.Options.Settings)
	maps.Copy(all, settings)
	return startPostgres(t, sandbox.PostgresOptions{Dir: dir, Settings: all, Disposable: true})
}
