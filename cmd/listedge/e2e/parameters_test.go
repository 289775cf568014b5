package e2e

import (
	"strings"
	"testing"
	"time"
)

// A URL that was made for another client, or names what the server does not know, is wrong usage:
// exit 2, which stops a supervisor from starting the program again and again.
func TestParametersOfTheDatabaseURL(t *testing.T) {
	t.Parallel()
	url := database(t)
	commands := []string{"serve --listen 127.0.0.1:0 --admin-listen 127.0.0.1:0 --drain 1ms --log-level error", "migrate up", "migrate status", "doctor", "workspaces list",
		"purge --all", "usage --workspace 00000000-0000-0000-0000-000000000000"}
	for parameters, want := range map[string]string{
		"pgbouncer=true":                       "the parameter pgbouncer is one of another client, not of Postgres: leave it out, a pooler",
		"connection_limit=5&schema=public":     "the parameter connection_limit is one of another client, not of Postgres: leave it out, --database-connections",
		"prepareThreshold=0":                   "the parameter prepareThreshold is one",
		"ApplicationName=x":                    "the parameter ApplicationName is one",
		"keepalives=1":                         "the parameter keepalives is one",
		"keepalives_idle=30":                   "the parameter keepalives_idle is one",
		"no_setting=1":                         "correct or remove no_setting in the URL\n",
		"statement_timeout=soon":               "correct or remove statement_timeout in the URL\n",
		"shared_buffers=1GB":                   "correct or remove shared_buffers in the URL\n",
		"options=-c%20no_setting%3D1%20-c%20x": "correct or remove options in the URL\n",
	} {
		for _, line := range commands {
			t.Run(line+" "+parameters, func(t *testing.T) {
				t.Parallel()
				p := start(t, append(strings.Fields(line), "--database-url", withParameters(url, parameters))...)
				defer time.AfterFunc(patience, func() { _ = p.Process.Kill() }).Stop()
				<-p.ended
				if said := p.err.String(); p.code != exitUsage || !strings.Contains(said, want) || strings.Count(said, "\n") != 1 {
					t.Errorf("exit %d: %s, want %s", p.code, said, want)
				}
			})
		}
	}
	refused(t, exitUsage, "the parameter pgbouncer is one", "dev", "--data-dir", t.TempDir(), "--replica-url", "postgres://h/d?pgbouncer=true")
	refused(t, exitUsage, "correct or remove no_setting", "migrate", "drop-slot", "--database-url", withParameters(url, "no_setting=1"))
	refused(t, exitUsage, "correct or remove no_setting", "doctor", "--database-url", withParameters(url, "no_setting=1"), "--replication-url", url)
	refused(t, exitUsage, "correct or remove no_setting", "doctor", "--replication-url", withParameters(url, "no_setting=1"), "--database-url", url)
	good := withParameters(url, "application_name=x&search_path=y&my.Setting=1&DateStyle=ISO&lock_timeout=5s&tcp_user_timeout=10s&connect_timeout=3&options=-c%20geqo%3Doff")
	command(t, "workspaces", "list", "--database-url", good)
	startNode(t, good)
}

func withParameters(url, parameters string) string {
	if strings.Contains(url, "?") {
		return url + "&" + parameters
	}
	return url + "?" + parameters
}
