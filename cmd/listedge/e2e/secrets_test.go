package e2e

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
)

// The program writes no password: neither in settings, errors and logs, nor in responses of
// the admin listener, nor in the output of commands.
func TestNoPasswordIsShown(t *testing.T) {
	t.Parallel()
	const secret = "s3cr!t"
	for what, c := range map[string]struct {
		args string
		env  string
		code int
		want string
	}{
		"an argument":           {args: "migrate up postgres://u:s3cr!t@h/d", code: exitUsage, want: "postgres://u:xxxxx@h/d"},
		"no command":            {args: "postgres://u:s3cr!t@h/d", code: exitUsage, want: "postgres://u:xxxxx@h/d"},
		"pairs as an argument":  {args: "migrate up password=s3cr!t", code: exitUsage, want: "unexpected argument"},
		"a port":                {args: "migrate up --database-url postgres://u:s3cr!t@127.0.0.1:x/d", code: exitUsage, want: "--database-url"},
		"an escape":             {args: "doctor --database-url postgres://u:s3cr!t%zz@127.0.0.1:1/d", code: exitUsage, want: "--database-url"},
		"an @":                  {args: "keys list --workspace 00000000-0000-0000-0000-000000000001 --database-url postgres://u:s3@s3cr!t@127.0.0.1:1/d", code: exitUsage, want: "%40"},
		"a slash":               {args: "seed --database-url postgres://u:12/s3cr!t@127.0.0.1:1/d", code: exitUsage, want: "%2F"},
		"a query":               {args: "workspaces list --database-url postgres://h/d?s3cr!t", code: exitUsage, want: "--database-url"},
		"a query's value":       {args: "workspaces list --database-url postgres://h/d?PASSWORD=s3cr!t%zz", code: exitUsage, want: "--database-url"},
		"a mode":                {args: "workspaces list --database-url postgres://u:s3cr!t@h/d?sslmode=no", code: exitUsage, want: "sslmode is invalid"},
		"a key's file":          {args: "workspaces list --database-url postgres://h/d?sslmode=require&sslcert=/none&sslkey=s3cr!t", code: exitUsage, want: "failed to configure TLS"},
		"pairs":                 {args: "purge --all --database-url host=h_password='s3cr!t", code: exitUsage, want: "--database-url"},
		"several hosts":         {args: "migrate status --database-url postgres://u:s3cr!t@a:1,b:x/d", code: exitUsage, want: "--database-url"},
		"of another database":   {args: "serve --database-url mysql://u:s3cr!t@h/d", code: exitUsage, want: "--database-url"},
		"a replica":             {args: "serve --database-url postgres://h/d --replica-url postgres://a/d,postgres://u:s3cr!t@h:x/d", code: exitUsage, want: "--replica-url"},
		"past a pooler":         {args: "serve --database-url postgres://h/d --replication-url postgres://u:s3@cr!t@s3cr!t/d", code: exitUsage, want: "--replication-url"},
		"doctor's replica":      {args: "doctor --database-url postgres://h/d --replica-url postgres://u:s3@cr!t@s3cr!t/d", code: exitUsage, want: "--replica-url"},
		"redis":                 {args: "serve --database-url postgres://h/d --redis-url redis://u:s3cr!t@h:x", code: exitUsage, want: "--redis-url"},
		"redis, its scheme":     {args: "serve --database-url postgres://h/d --redis-url s3cr!t://h", code: exitUsage, want: "--redis-url"},
		"redis, an escape":      {args: "doctor --database-url postgres://h/d --redis-url rediss://u:%s3cr!t@h", code: exitUsage, want: "--redis-url"},
		"redis, a slash":        {args: "doctor --database-url postgres://h/d --redis-url redis://u:12/s3cr!t@h/0", code: exitUsage, want: "--redis-url"},
		"redis, a query":        {args: "serve --database-url postgres://h/d --redis-url redis://a:1,b:2?password=s3cr!t", code: exitUsage, want: "--redis-url"},
		"a node":                {args: "ready --node http://u:s3cr!t@h:x", code: exitUsage, want: "--node"},
		"doctor's node":         {args: "doctor --database-url postgres://h/d --node http://u:s3cr!t@h:x", code: exitUsage, want: "--node"},
		"a node by environment": {args: "explain x", env: "LISTEDGE_NODE=http://u:s3cr!t@h:x", code: exitUsage, want: "--node"},
		"a node that is not":    {args: "explain x --node http://u:s3cr!t@127.0.0.1:1", code: exitFailed, want: "connection refused"},
		"a server that is not":  {args: "migrate up --database-url postgres://u:s3cr!t@127.0.0.1:1/d", code: exitFailed, want: "connection refused"},
		"by environment":        {args: "workspaces list", env: "LISTEDGE_DATABASE_URL=postgres://u:s3@cr!t@s3cr!t/d", code: exitUsage, want: "--database-url"},
		"a collector":           {args: "serve --database-url postgres://h/d --listen 127.0.0.1:0 --admin-listen 127.0.0.1:0", env: "OTEL_EXPORTER_OTLP_ENDPOINT=http://u:s3cr!t@h:x", code: exitUsage, want: "OTEL_EXPORTER_OTLP_ENDPOINT"},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			args := strings.Fields(c.args)
			for i := range args {
				args[i] = strings.ReplaceAll(args[i], "host=h_", "host=h ")
			}
			p := startWith(t, c.env, args...)
			<-p.ended
			if said := p.err.String(); p.code != c.code || strings.Count(said, "\n") != 1 || !strings.Contains(said, c.want) {
				t.Errorf("exit %d: %q, want %q", p.code, said, c.want)
			}
			if all := p.out.String() + p.err.String(); strings.Contains(all, secret) || strings.Contains(all, "cr!t") {
				t.Errorf("the password is shown: %s", all)
			}
		})
	}
}

// A node that reaches no server logs every failure, and no password.
func TestANodeShowsNoPassword(t *testing.T) {
	t.Parallel()
	const secret = "s3cr!t"
	for what, c := range map[string]struct{ database, redis string }{
		"URLs":      {"postgres://u:s3cr!t@127.0.0.1:1,127.0.0.1:2/d?sslpassword=s3cr!t", "redis://u:s3cr!t@127.0.0.1:1/0"},
		"escaped":   {"postgresql://u:s3cr%21t@127.0.0.1:1/d?password=s3cr%21t", "redis://:s3cr%21t@127.0.0.1:1,127.0.0.1:2"},
		"an @":      {"postgres://127.0.0.1:1/d?user=u&password=s3cr!t&passfile=s3cr!t", "rediss://u:a@s3cr!t@127.0.0.1:1"},
		"sentinels": {"postgres://u:s3cr!t@127.0.0.1:1/d", "redis+sentinel://u:s3cr!t@127.0.0.1:1,127.0.0.1:2/m"},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			p := startWith(t, "OTEL_EXPORTER_OTLP_HEADERS=s3cr!t", "serve", "--listen=127.0.0.1:0", "--admin-listen=127.0.0.1:0", "--drain=1ms", "--log-level=debug",
				"--database-url", c.database, "--replica-url", "postgres://u:s3cr!t@127.0.0.1:1/d,postgres://u:s3cr%21t@127.0.0.1:2/d", "--redis-url", c.redis)
			within(t, patience, "complaints", func() bool {
				return strings.Contains(p.err.String(), "not ready") && strings.Contains(p.err.String(), "following changes was interrupted")
			})
			admin := "http://" + regexp.MustCompile(`admin=(\S+)`).FindStringSubmatch(p.err.String())[1]
			shown := ""
			for _, path := range []string{"/settings", "/readyz", "/log", "/metrics", "/", "/debug/pprof/", "/debug/pprof/cmdline", "/debug/pprof/goroutine?debug=2"} {
				r := must1(http.Get(admin + path))
				body, err := io.ReadAll(r.Body)
				r.Body.Close()
				must(err)
				shown += fmt.Sprintf("%s: %s\n", path, body)
			}
			doctor := start(t, "doctor", "--database-url", c.database, "--redis-url", c.redis, "--node", admin)
			<-doctor.ended
			if !strings.Contains(doctor.out.String(), "connection refused") {
				t.Errorf("%s%s", doctor.out.String(), doctor.err.String())
			}
			if code := p.stop(); code != exitFine {
				t.Errorf("exit %d: %s", code, p.err.String())
			}
			shown += p.out.String() + p.err.String() + doctor.out.String() + doctor.err.String()
			for line := range strings.Lines(shown) {
				for _, secret := range []string{secret, "s3cr%21t"} {
					if strings.Contains(line, secret) {
						t.Errorf("the password is shown: %s", line)
					}
				}
			}
		})
	}
}

// startWith starts the program with one environment variable more.
func startWith(t *testing.T, variable string, args ...string) *program {
	t.Helper()
	c := exec.Command(listedge, args...)
	c.Env = append(os.Environ(), variable)
	return startCommand(t, c)
}
